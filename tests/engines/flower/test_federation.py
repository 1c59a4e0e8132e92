"""Real processes on the loopback interface: the same bytes as in simulation, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import comparable, eventually, processes_that_mention

from fedfeat.config.config import Config
from fedfeat.engines.flower.control import Control
from fedfeat.engines.flower.processes import Process
from fedfeat.runs import deploy
from fedfeat.runs.deploy import Server
from fedfeat.runs.experiment import Result, start
from toy import toy_config, write_toy
from toy_runs import weights

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Federation = tuple[Server, list[Process], Path]


def toy(folder: Path, method: str, clients: int, rounds: int) -> Config:
    """Return a quick experiment of two tasks."""
    small = {"scenario": {"tasks": 2, "clients": clients}, "train": {"rounds": rounds}, "federation": {"poll": 0.05}}
    return toy_config(method, data={"path": str(folder / "toy.npz")}, **small)


def run_both_ways(config: Config, server: Server, folder: Path) -> tuple[Result, list[dict[str, Any]]]:
    """Run in process and in the federation, with the same outcome; return it with the federation's events."""
    expected = start(config, folder / "here")
    events: list[dict[str, Any]] = []
    result = server.run(deploy.prepare_run(deploy.federated(config), folder / "there"), (events.append,))
    assert comparable(result) == comparable(expected)
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert weights(folder / "there") == weights(folder / "here")
    return result, events


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One server and two resident clients for all runs of this file."""
    folder = tmp_path_factory.mktemp("federation")
    write_toy(folder / "toy.npz")
    with ExitStack() as stack:
        server = stack.enter_context(deploy.server(folder / "server"))
        clients = [stack.enter_context(start_client(server, folder, k)) for k in range(2)]
        yield server, clients, folder
    assert processes_that_mention(str(folder)) == []


def start_client(server: Server, folder: Path, number: int, *, stock: bool = False) -> Process:
    options = {"client": number, "device": "cpu", "data": str(folder / "toy.npz")}
    name = f"client-{number}"
    return deploy.client(folder / name, name, server.address, options, stock=stock)


def test_same_bytes_as_in_process(federation: Federation, tmp_path: Path) -> None:
    server, _, folder = federation
    result, events = run_both_ways(toy(folder, "fedcbdr+feat", 2, rounds=2), server, tmp_path)
    kinds = [e["event"] for e in events if e["event"] != "joined"]
    assert kinds == ["start", "round", "round", "task", "round", "round", "task", "end"]
    assert {e["name"]: e["client"] for e in events if e["event"] == "joined"} == {"client-0": 0, "client-1": 1}
    rounds = [e for e in events if e["event"] == "round"]
    assert all(sorted(e["client_seconds"]) == ["0", "1"] and e["replied"] == 2 for e in rounds)
    assert all(set(e["time"]) == {"training", "waiting", "serialising"} for e in rounds)
    _check_what_left(folder, tmp_path / "there", result)


def _check_what_left(folder: Path, run: Path, result: Result) -> None:
    """What clients say they sent is what the server counted, entry by entry."""
    name = json.loads((run / "federation.json").read_text())["run"]
    sent: dict[str, int] = {}
    for k in range(2):
        journal = json.loads((folder / f"client-{k}" / "state" / name / "store" / "journal.json").read_text())
        for entry, size in journal["sent"].items():
            sent[entry] = sent.get(entry, 0) + size
    assert sent == {k.removeprefix("up/"): v for k, v in result["traffic"].items() if k.startswith("up/")}
    log = (folder / "client-0" / "client-0.log").read_text()
    assert "leaves this client: model weights" in log
    assert "train:" in log


def test_stock_clients_give_the_same_bytes(federation: Federation, tmp_path: Path) -> None:
    """Flower's own SuperNode, an interpreter per message: everything a client knows comes from its disk."""
    server, clients, folder = federation
    with Control(server.link.address) as control:

        def online() -> set[int]:
            return {node.id for node in control.nodes() if node.online}

        eventually(lambda: len(online()) == len(clients), what="two residents")
        residents = online()
        with start_client(server, folder, 2, stock=True):
            result, _ = run_both_ways(toy(folder, "fedlwf", 3, rounds=1), server, tmp_path)
            assert result["rounds_with_fewer_clients"] == []
            (stock,) = online() - residents
        # A client that says goodbye is gone long before the minute after which silence counts as leaving.
        eventually(lambda: stock not in online(), 20, "the leave of a stopped client")
        os.kill(clients[0].pid, signal.SIGKILL)
        # Without a key it comes back as somebody new; with one it would wait for its old session to expire.
        eventually(lambda: online() - residents, 60, "the return of a killed client")
