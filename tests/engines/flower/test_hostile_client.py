"""A client that sends finite numbers to do harm: it costs the run its own reply and nothing else."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dropouts import VICTIM, Change, config_for, in_process_without, same_outcome, small, with_payload
from flwr.app import Error, Message
from local_grid import NODE, LocalGrid, local_nodes

from fedfeat.algorithm.engine import Lost
from fedfeat.engines.flower.app import show_log
from fedfeat.engines.flower.codec import Packed, pack
from fedfeat.engines.flower.messages import from_records
from fedfeat.federation import loop
from fedfeat.methods.fedcbdr.leverage import allot_by_class
from fedfeat.runs.experiment import Result
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy_runs import saved


@pytest.fixture
def _soon() -> Iterator[None]:
    """An endless loop fails the test instead of holding up all of them."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("did not end within 10 s"))
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def spoilt(tmp_path: Path, config: Any, change: Change, clients: int = 3) -> Result:
    """Run a federation in which one client's replies to ``train`` are changed."""

    def fault(node: int, reply: Message) -> Message:
        trained = '"loss.first_epoch"' in from_records(reply.content)[1].manifest
        return with_payload(reply, change) if node == NODE + VICTIM and trained else reply

    RunFolder.create(tmp_path / "run", config, {})
    return run_in(tmp_path / "run", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz", clients), fault))


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("mass", [-100.0, -1e30, -9e-4])
def test_a_negative_mass_neither_hangs_the_server_nor_passes_the_budget(mass: float) -> None:
    counts = torch.tensor([30, 30], dtype=torch.int32)
    honest = {"counts": counts, "masses": torch.tensor([9e-4, 1.0])}
    shares = allot_by_class(14, {0: {"counts": counts, "masses": torch.tensor([mass, 1.0])}, 1: honest})
    assert sum(int(torch.as_tensor(share).sum()) for share in shares.values()) == 14


@pytest.mark.parametrize("clients", [2, 3])
@pytest.mark.parametrize("size", [3e38, 1e8, 1e4])
def test_large_weights_are_refused_and_the_run_is_as_without_them(tmp_path: Path, clients: int, size: float) -> None:
    changes = {"scenario": {**small(tmp_path)["scenario"], "clients": clients}}
    config = config_for(tmp_path, "finetune", changes)
    result = spoilt(tmp_path, config, lambda r: {**r, "weights": r["weights"] + size}, clients)
    rounds = [(task, round) for task in range(2) for round in range(2)]
    gone = dict.fromkeys(rounds, Lost("failed", "refused"))
    fewer = result["rounds_with_fewer_clients"]
    assert [list(e["failed"]) for e in fewer] == [[str(_victim(clients))]] * 4
    assert all(e["failed"][str(_victim(clients))].startswith("weights: ") for e in fewer)
    if clients == 3:
        expected, weights = in_process_without(tmp_path, gone, "finetune", **changes)
        assert same_outcome(tmp_path / "run", result, ({**expected, "rounds_with_fewer_clients": fewer}, weights))


def _victim(clients: int) -> int:
    return clients - 1 - VICTIM  # nodes are not in the order of ids


def test_a_round_that_leads_to_no_model_is_thrown_away_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    average, calls = loop.average, []

    def overflown(*arguments: Any) -> Any:
        result = average(*arguments)
        calls.append(result)
        if len(calls) == 2:
            result.weights[0] = float("inf")
        return result

    monkeypatch.setattr(loop, "average", overflown)
    config = config_for(tmp_path, "finetune")
    RunFolder.create(tmp_path / "run", config, {})
    run_in(tmp_path / "run", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz")))
    folder = RunFolder.open(tmp_path / "run")
    rounds = [e for e in folder.events() if e["event"] == "round"]
    assert [e.get("discarded") for e in rounds] == [
        None,
        "the averaged weights: a number that is not finite, or larger than 1e+09",
        None,
        None,
    ]
    assert saved(tmp_path / "run").weights.isfinite().all()


FORGED = "ok\n2026-01-01 00:00:00 WARNING all is well\r\x1b[2J\u202e" + 3_000_000 * "x"


@pytest.fixture
def server_log(tmp_path: Path) -> Path:
    """The server's log as its process writes it."""
    logging.getLogger("fedfeat").handlers = []
    show_log(dates=True, file=tmp_path / "server.log")
    return tmp_path / "server.log"


@pytest.mark.parametrize("where", ["failed", "entry", "hello", "refused", "classes", "error", "unreadable"])
def test_a_clients_words_are_one_short_line_wherever_they_are_kept(
    tmp_path: Path, server_log: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, "finetune", quorum=0.3)
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz", known_ids=False)
    hostile = nodes[NODE + VICTIM]
    hello, ask = hostile.hello, hostile.ask
    words: dict[str, Any] = {
        "hello": {"name": FORGED},
        "refused": {"refused": FORGED},
        "classes": {"classes": [FORGED]},
    }
    monkeypatch.setattr(hostile, "hello", lambda header: {**hello(header), **words.get(where, {})})
    if where == "failed":
        monkeypatch.setattr(hostile, "ask", lambda *asked: ({"failed": FORGED}, pack({})))
    if where == "entry":
        monkeypatch.setattr(hostile, "ask", lambda *asked: (ask(*asked)[0], pack({"samples": 3, FORGED: 1})))
    if where == "unreadable":
        monkeypatch.setattr(hostile, "ask", lambda *asked: (ask(*asked)[0], Packed(f'[["{FORGED!r}", 1, 2]]', {})))
    grid = LocalGrid(nodes)
    if where == "error":
        grid.fault = lambda node, reply: Error(1, FORGED) if node == NODE + VICTIM else reply
    RunFolder.create(tmp_path / "run", config, {})
    run_in(tmp_path / "run", grid)
    lines = server_log.read_text()
    assert not re.search(r"^\S+ \S+ WARNING all is well", lines, re.MULTILINE)
    for path in (server_log, *(tmp_path / "run" / name for name in ("events.jsonl", "result.json", "federation.json"))):
        text = path.read_text()
        assert len(text) < 50_000, path.name
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]|\\\\u001b|\\\\n2026", text), path.name
