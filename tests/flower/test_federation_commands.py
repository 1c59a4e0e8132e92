"""The commands as a user types them: stopped with Ctrl-C, started again, and given nonsense."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from federations import processes_that_mention
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_table, untimed, write_toy


def fedfeat(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedfeat", *map(str, arguments)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy.npz")
    table = toy_table(method="fedcbdr+feat", data={"path": "toy.npz"}, scenario={"clients": 2, "tasks": 2})
    (tmp_path / "toy.toml").write_text(tomli_w.dumps(table))
    return tmp_path / "toy.toml"


def test_federate_is_stopped_by_ctrl_c_and_goes_on_where_it_was(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = fedfeat("federate", config, "--out", run)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    limit = time.monotonic() + 120
    while _rounds(run) < 1 and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "stopped; the same command continues" in said
    assert "Traceback" not in said
    assert processes_that_mention(str(tmp_path)) == []
    done = _rounds(run)
    assert 1 <= done < 4

    command += ["--set", "federation.deadline=500"]  # nothing that changes a result
    again = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resuming in task 1 after round" in again.stdout or "resuming in task 2 after round" in again.stdout
    assert "2 of 2 clients" in again.stdout
    assert "final accuracy" in again.stdout
    assert (run / "report.html").exists()
    assert "deadline = 500" in (run / "config.toml").read_text()
    assert processes_that_mention(str(tmp_path)) == []

    here = toy_config("fedcbdr+feat", data={"path": str(tmp_path / "toy.npz")}, scenario={"clients": 2, "tasks": 2})
    expected, result = start(here, tmp_path / "here"), RunFolder.open(run).result()
    assert result is not None
    assert {k: v for k, v in untimed(result).items() if k != "config"} == {
        k: v for k, v in untimed(expected).items() if k != "config"
    }


def _rounds(run: Path) -> int:
    return sum(e["event"] == "round" for e in RunFolder(run).events())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["client", "--server", "nowhere"], "'nowhere': expected an address such as fl.example.org:9092"),
        (["client", "--server", "host:99999"], "'host:99999': expected an address"),
        (["server", "CONFIG", "--listen", "0.0.0.0:9092"], "needs certificates and clients' keys"),
        (["server", "CONFIG", "--keys", "."], "ca.crt: missing"),
        (["federate", "CONFIG", "--set", "scenario.budget=9999", "--out", "RUN"], "does not match the run begun here"),
        (["run", "CONFIG", "--set", "engine.name=flower"], "'fedfeat federate' on one machine"),
        (["run", "CONFIG", "--set", "federation.quorum=2"], "federation.quorum"),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str], sentence: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "RUN" in arguments:
        start(toy_config("fedcbdr+feat", data={"path": str(tmp_path / "toy.npz")}), tmp_path / "run")
    given = [{"CONFIG": str(config), "RUN": str(tmp_path / "run")}.get(a, a) for a in arguments]
    error = CliRunner().invoke(app, given).exception
    assert isinstance(error, FedfeatError), repr(error)
    assert sentence in str(error)
    assert processes_that_mention(str(tmp_path)) == []
