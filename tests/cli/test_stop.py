"""Ctrl-C in real processes: one sentence that says how to go on, exit code 130, and it does go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from fedfeat.runs.experiment import resume
from toy import toy_table, write_toy

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX"),
]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    data = {"path": str(write_toy(tmp_path / "toy.npz"))}
    table = toy_table(method="finetune", seed=1, data=data, train={"rounds": 24})
    (tmp_path / "toy.toml").write_text(tomli_w.dumps(table))
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps({**table, "sweep": {"seeds": [1, 2]}}))
    return tmp_path


def stop(command: list[str | Path], folder: Path, lines: int = 5) -> tuple[int, str]:
    """Send SIGINT to a command and all its processes, as a terminal does, once a run has written some events."""
    called = [sys.executable, "-m", "fedfeat", *map(str, command)]
    process = subprocess.Popen(
        called, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and _lines(folder) < lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, "the command was over before it could be stopped"
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    return process.returncode, said


def _lines(folder: Path) -> int:
    # Not in folders below a run: checkpoints come and go while they are looked through.
    found = [path for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}events.jsonl")]
    return sum(path.read_bytes().count(b"\n") for path in found)


def test_a_stopped_run_names_the_command_that_continues_it(toy: Path) -> None:
    out = toy / "out"
    said = (130, f"stopped; 'fedfeat resume {out}' continues it\n")
    assert stop(["run", toy / "toy.toml", "--out", out], out) == said
    begun = _lines(out)
    assert stop(["resume", out], out, begun + 5) == said
    assert not (out / "result.json").exists()
    resume(out)
    assert (out / "result.json").is_file()


@pytest.mark.parametrize(
    "command",
    ["compare toy.toml --methods finetune --seeds 1,2", "sweep sweep.toml --workers 2"],
    ids=["one process", "workers"],
)
def test_a_stopped_command_says_that_it_continues(toy: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy)
    said = (130, "stopped; the same command continues\n")
    assert stop([*command.split(), "--out", "out"], toy / "out") == said
