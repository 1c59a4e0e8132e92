"""The commands of a federation, given nonsense."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import tomli_w
import typer
from federations import processes_that_mention
from typer.testing import CliRunner

from fedfeat.cli import app, federation
from fedfeat.config.deciding import PIN
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.experiment import start
from toy import toy_config, toy_table, write_toy


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy.npz")
    table = toy_table(method="fedcbdr+feat", data={"path": "toy.npz"}, scenario={"clients": 2, "tasks": 2})
    (tmp_path / "toy.toml").write_text(tomli_w.dumps(table))
    return tmp_path / "toy.toml"


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_service_that_is_stopped_end_alike(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests are a background job
    try:
        with pytest.raises(typer.Exit) as ended, federation._stoppable():
            signal.raise_signal(number)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.exit_code == 130
    assert "the same command continues" in capsys.readouterr().out


def test_clients_of_a_federation_here_are_told_where_plugins_are(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from fedfeat.engines.flower.app import make_client

    pinned = [f"{tmp_path / name}{PIN}4f1c" for name in ("one.py", "two.py")]
    options = federation._options(None, "cpu", pinned, client=0)
    client = make_client({"folder": str(tmp_path / "client"), "name": "client-0", **options})
    assert client.settings.plugins == (str(tmp_path / "one.py"), str(tmp_path / "two.py"))
