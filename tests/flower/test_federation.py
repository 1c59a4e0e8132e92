"""Real processes on the loopback interface: the same bytes as in simulation, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import processes_that_mention

from fedfeat.config import Config, make_config
from fedfeat.runs import deploy
from fedfeat.runs.deploy import Server
from fedfeat.runs.experiment import Result, start
from fedfeat.runs.folder import RunFolder
from toy import untimed

CLIENTS = 3


def digits(method: str, **changes: Any) -> Config:
    table: dict[str, Any] = {
        "method": method,
        "seed": 5,
        "scenario": {"tasks": 2, "clients": CLIENTS, "budget": 12},
        "train": {"rounds": 2, "local_epochs": 1, "batch": 64},
        "engine": {"device": "cpu", "threads": 1},
    }
    return make_config({**table, **changes})


def comparable(result: Result) -> Result:
    config = {k: v for k, v in result["config"].items() if k != "engine"}
    return {**untimed(result), "config": config}


def weights(folder: Path) -> bytes:
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    return loaded[0].weights.numpy().tobytes()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """One server and three resident clients for all runs of this file."""
    folder = tmp_path_factory.mktemp("federation")
    with ExitStack() as stack:
        server = stack.enter_context(deploy.server(folder / "server"))
        for k in range(CLIENTS):
            options = {"client": k, "device": "cpu"}
            stack.enter_context(deploy.client(folder / f"client-{k}", f"client-{k}", server.address, options))
        yield server, folder
    assert processes_that_mention(str(folder)) == []


@pytest.mark.parametrize("method", ["fedcbdr+feat", "refed+feat", "fedlwf"])
def test_same_bytes_as_in_process(method: str, federation: tuple[Server, Path], tmp_path: Path) -> None:
    server, folder = federation
    expected = start(digits(method), tmp_path / "here")
    config = deploy.federated(digits(method))
    events: list[dict[str, Any]] = []
    result = server.run(deploy.prepare_run(config, tmp_path / "there"), (events.append,))
    assert comparable(result) == comparable(expected)
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    kinds = [e["event"] for e in events if e["event"] != "joined"]
    assert kinds == ["start", "round", "round", "task", "round", "round", "task", "end"]
    assert {e["name"]: e["client"] for e in events if e["event"] == "joined"} == {f"client-{k}": k for k in range(3)}
    rounds = [e for e in events if e["event"] == "round"]
    assert all(sorted(e["client_seconds"]) == ["0", "1", "2"] and e["replied"] == 3 for e in rounds)
    assert all(set(e["time"]) == {"training", "waiting", "serialising"} for e in rounds)
    _check_what_left(folder, result)


def _check_what_left(folder: Path, result: Result) -> None:
    """What clients say they sent is what the server counted, entry by entry."""
    run = next(r for r in (folder / "client-0" / "state").iterdir() if _method_of(r) == result["method"])
    sent: dict[str, int] = {}
    for k in range(CLIENTS):
        journal = json.loads((folder / f"client-{k}" / "state" / run.name / "store" / "journal.json").read_text())
        for entry, size in journal["sent"].items():
            sent[entry] = sent.get(entry, 0) + size
    assert sent == {k.removeprefix("up/"): v for k, v in result["traffic"].items() if k.startswith("up/")}
    log = (folder / "client-0" / "client-0.log").read_text()
    assert "leaves this client: model weights" in log
    assert "train:" in log


def _method_of(run: Path) -> str:
    method: str = json.loads((run / "config.json").read_text())["method"]
    return method


def test_stock_clients_give_the_same_bytes(tmp_path: Path) -> None:
    """Flower's own SuperNodes, an interpreter per message: everything a client knows comes from its disk."""
    small = {"scenario": {"tasks": 2, "clients": 1, "budget": 12}, "train": {"rounds": 1, "batch": 64}}
    expected = start(digits("fedlwf", **small), tmp_path / "here")
    config = deploy.federated(digits("fedlwf", **small))
    options = {"client": 0, "device": "cpu"}
    with (
        deploy.server(tmp_path / "server", database=True) as server,
        deploy.client(tmp_path / "client", "only", server.address, options, stock=True),
    ):
        result = server.run(deploy.prepare_run(config, tmp_path / "there"))
    assert comparable(result) == comparable(expected)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert processes_that_mention(str(tmp_path)) == []
