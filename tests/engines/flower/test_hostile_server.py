"""A server that asks for more than a client should give: what it names is compared, and what it asks is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fedfeat.config import plugins
from fedfeat.config.config import Table
from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.engines.flower.messages import PROTOCOL, Header, config_to_send
from fedfeat.methods import PARTS
from toy import toy_config, write_toy

PLUGIN = '''from pathlib import Path

from fedfeat.algorithm.registry import addon

Path("{marker}").touch()


@addon("quiet-{name}")
def quiet(method, settings):
    """Changes nothing."""
    return method
'''


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """A plugin stays registered as long as the process lives; other tests must not notice."""
    with patch.dict(PARTS), patch.dict(plugins._contents), patch.dict(plugins._files):
        yield


def write_plugin(path: Path, name: str) -> str:
    """Write a plugin that leaves a file beside itself when it is run; return how a configuration pins it."""
    path.write_text(PLUGIN.format(marker=path.with_suffix(".ran"), name=name))
    return f"{path}@sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def client_at(tmp_path: Path, **settings: Any) -> FederationClient:
    data = write_toy(tmp_path / "toy.npz")
    return FederationClient(ClientSettings(tmp_path / "state", "a", device="cpu", **settings), data)


def greeting(**changes: Any) -> Header:
    table: Table = {**config_to_send(toy_config("finetune")), **changes}
    return {"protocol": PROTOCOL, "run": "r1", "config": table}


def test_a_plugin_that_the_server_names_is_compared_and_never_loaded(tmp_path: Path) -> None:
    named = write_plugin(tmp_path / "any.py", "named")
    hello = client_at(tmp_path).hello(greeting(plugins=[named]))
    assert not (tmp_path / "any.ran").exists(), "the server chose what this client runs"
    assert "any.py" in hello["refused"]
    assert "--plugin" in hello["refused"]
    assert str(tmp_path) not in hello["refused"]


def test_a_client_with_the_servers_plugin_takes_part_with_its_own_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    entry = write_plugin(mine, "mine")
    client = client_at(tmp_path, plugins=(str(mine),))
    digest = entry.partition("@")[2]
    assert "refused" not in client.hello(greeting(plugins=[f"/elsewhere/mine.py@{digest}"]))
    assert (tmp_path / "mine.ran").exists()
    refused = client.hello(greeting(plugins=["/elsewhere/mine.py@sha256:" + 64 * "0"]))["refused"]
    assert "mine.py" in refused
    for odd in (["\n" * 10**6], [3], "mine.py", {"a": 1}, None):
        assert len(client.hello(greeting(plugins=odd))["refused"]) < 400


def test_an_error_of_a_client_with_public_data_names_no_local_path(tmp_path: Path) -> None:
    data = tmp_path / "jane-doe" / "toy.npz"
    settings = ClientSettings(tmp_path / "state", "a", device="cpu")
    hello = FederationClient(settings, data).hello(greeting())
    assert hello["refused"].endswith("see the client's log")
    assert "jane-doe" not in str(hello)


def test_the_server_tells_its_plugins_by_name_and_checksum(tmp_path: Path) -> None:
    entry = write_plugin(tmp_path / "ours.py", "ours")
    table = config_to_send(toy_config("finetune", plugins=[entry]))
    assert table["plugins"] == ["ours.py@" + entry.partition("@")[2]]
