"""What a client keeps is nobody else's business, and what a server lacks is said at the start."""

from __future__ import annotations

import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.engines.flower.keys import make_keys
from fedfeat.engines.flower.processes import Process
from fedfeat.runs import deploy
from toy import toy_config, write_toy


@pytest.mark.parametrize("there", [False, True])
def test_a_clients_folder_is_its_owners_alone(tmp_path: Path, there: bool) -> None:
    home = tmp_path / "clients" / "a"
    if there:
        home.mkdir(parents=True, mode=0o755)
    deploy.client(home, "a", "127.0.0.1:1", {"data": "/srv/images"})
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.processes
def test_so_is_the_folder_of_every_process(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir(mode=0o755)
    with Process(tmp_path / "p", "sleeper", ["sleep", "60"]):
        assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700


def test_fewer_keys_than_clients_are_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path / "keys", ["localhost"], ["a", "b"])
    config = toy_config("finetune", data={"path": str(write_toy(tmp_path / "toy.npz"))})
    (tmp_path / "toy.toml").write_text(config.to_toml())

    @contextmanager
    def server(*_: Any, **__: Any) -> Any:
        yield Mock(address="here:1")

    monkeypatch.setattr(deploy, "server", server)
    monkeypatch.setattr("fedfeat.cli.federation._watch", Mock())
    options = ["--keys", str(tmp_path / "keys" / "server"), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["server", str(tmp_path / "toy.toml"), *options])
    assert done.exit_code == 0, done.output
    assert "only 2 clients have a key" in done.output
