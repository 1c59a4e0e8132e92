"""Clients that fail, lie or sleep: the run goes on without them, and says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dropouts import VICTIM, config_for, in_process_without, with_payload
from flwr.app import Error, Message
from local_grid import NODE, LocalGrid, local_nodes

from fedfeat.algorithm.engine import Lost
from fedfeat.engines.flower.codec import unpack
from fedfeat.engines.flower.messages import from_records, to_records
from fedfeat.federation.exchange import TooFewClients
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy import toy_config, toy_dataset
from toy_runs import weights

pytestmark = pytest.mark.slow


def nan(payload: dict[str, Any]) -> dict[str, Any]:
    payload["weights"][3] = math.nan
    return payload


def with_header(reply: Message, **words: Any) -> Message:
    header, packed = from_records(reply.content)
    reply.content = to_records({**header, **words}, packed)
    return reply


SPOILS: dict[str, tuple[Callable[[Message], Message | Error | None], str, str]] = {
    "NaN": (lambda m: with_payload(m, nan), "failed", "weights: not a finite number, or a tensor with such"),
    "infinite loss": (
        lambda m: with_payload(m, lambda p: {**p, "loss.ce": math.inf}),
        "failed",
        "loss.ce: not a finite number, or a tensor with such",
    ),
    "cut": (
        lambda m: with_payload(m, lambda p: {**p, "weights": p["weights"][:5]}),
        "failed",
        "weights: expected float32 [{n}], got float32 [5]",
    ),
    "another dtype": (
        lambda m: with_payload(m, lambda p: {**p, "weights": p["weights"].double()}),
        "failed",
        "weights: expected float32 [{n}], got float64 [{n}]",
    ),
    "no weights": (
        lambda m: with_payload(m, lambda p: {k: v for k, v in p.items() if k != "weights"}),
        "failed",
        "weights: expected float32 [{n}], got nothing",
    ),
    "no samples": (
        lambda m: with_payload(m, lambda p: {k: v for k, v in p.items() if k != "samples"}),
        "failed",
        "samples: expected a number of samples of at most 68, got None",
    ),
    "too much": (
        lambda m: with_payload(m, lambda p: {**p, "images": torch.zeros(3)}),
        "failed",
        "images: not among what this method sends",
    ),
    "refused by Flower": (lambda m: Error(6, "mod failed"), "failed", "mod failed (6)"),
    "words": (lambda m: with_header(m, seconds="x"), "failed", "seconds: expected a number, got 'x'"),
    "raised": (lambda m: Error(2, "ValueError: no"), "failed", "ValueError: no (2)"),
    "crashed": (lambda m: Error(8, "stopped responding"), "failed", "stopped responding (8)"),
    "gone": (lambda m: Error(5, "Node Unavailable"), "missing", "Node Unavailable (5)"),
    "expired": (lambda m: Error(4, "Reply unavailable"), "missing", "Reply unavailable (4)"),
    "asleep": (lambda m: None, "missing", "no reply within 0.2 s"),
    "another version": (
        lambda m: Error(1, "no such module"),
        "failed",
        "no such module (1); install the same versions of fedfeat and flwr on all machines",
    ),
}


def one_in_each_round(node: int, reply: Message, rounds: Iterator[str]) -> Message | Error | None:
    """Spoil what the victim trained, in each round in another way; after the last one it is left alone."""
    trained = node == NODE + VICTIM and "weights" in unpack(from_records(reply.content)[1])
    name = next(rounds, None) if trained else None
    return reply if name is None else SPOILS[name][0](reply)


def test_lost_replies_leave_the_rest_as_in_process(tmp_path: Path) -> None:
    long: dict[str, Any] = {"train": {"rounds": len(SPOILS) + 1, "local_epochs": 1}, "scenario": {"tasks": 1}}
    RunFolder.create(tmp_path / "run", config_for(tmp_path, changes=long), {})
    rounds = iter(SPOILS)
    grid = LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz"), lambda n, reply: one_in_each_round(n, reply, rounds))
    result = run_in(tmp_path / "run", grid)
    size = str(Experiment(toy_config("fedcbdr+feat", **long), toy_dataset()).engine.begin_task(0).numel())
    fates = [(fate, reason.replace("{n}", size)) for _, fate, reason in SPOILS.values()]
    for number, (name, record, (fate, reason)) in enumerate(
        zip(SPOILS, result["rounds_with_fewer_clients"], fates, strict=True), start=1
    ):
        whole = {"replied": 2, "failed": {}, "missing": {}, fate: {str(VICTIM): reason}}
        assert record == {"task": 1, "round": number, "op": "train", "clients": 3, **whole}, name
    lost = {(0, round): Lost(fate, reason) for round, (fate, reason) in enumerate(fates)}  # type: ignore[arg-type]
    expected, bytes_without = in_process_without(tmp_path, lost, **long)
    assert weights(tmp_path / "run") == bytes_without
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert result["rounds_with_fewer_clients"] == expected["rounds_with_fewer_clients"]


def test_an_app_that_nobody_can_load_ends_the_run_with_the_same_words(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path), {})
    grid = LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz"), lambda node, m: Error(1, "no such module"))
    with pytest.raises(TooFewClients, match="install the same versions"):
        run_in(tmp_path / "run", grid)


def test_whatever_reading_a_reply_raises_costs_that_reply_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[str] = []

    def fault(op: str, *others: object) -> str | None:
        if not raised:
            raised.append(op)
            raise ZeroDivisionError("oh")
        return None

    monkeypatch.setattr("fedfeat.engines.flower.engine.fault_of", fault)
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "finetune"), {})
    result = run_in(tmp_path / "run", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz")))
    (short,) = result["rounds_with_fewer_clients"]
    assert list(short["failed"].values()) == ["the reply cannot be used (ZeroDivisionError: oh)"]


SHORT: dict[str, tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "fisher": ("fedewc", "fisher", lambda p: {**p, "fisher": p["fisher"][:-3]}),
    "no fisher": ("fedewc", "fisher", lambda p: {}),
    "control": ("finetune+scaffold", "control_change", lambda p: {**p, "control_change": p["control_change"][:-3]}),
    "class sums": ("herding+ncm", "class_sums", lambda p: {**p, "class_sums": p["class_sums"][:-1]}),
}


@pytest.mark.parametrize("name", SHORT)
def test_an_entry_that_is_too_short_costs_one_client(name: str, tmp_path: Path) -> None:
    method, entry, change = SHORT[name]

    def fault(node: int, reply: Message) -> Message:
        struck = node == NODE + VICTIM and f'"{entry}"' in from_records(reply.content)[1].manifest
        return with_payload(reply, change) if struck else reply

    RunFolder.create(tmp_path / "run", config_for(tmp_path, method), {})
    result = run_in(tmp_path / "run", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz"), fault))
    assert result["rounds_with_fewer_clients"]
    assert all(list(short["failed"]) == [str(VICTIM)] for short in result["rounds_with_fewer_clients"])


@pytest.mark.parametrize("method", ["fedlwf", "fedewc", "lander"])
def test_a_client_that_was_away_when_a_task_began_gets_what_it_missed(method: str, tmp_path: Path) -> None:
    config = config_for(tmp_path, method)
    RunFolder.create(tmp_path / "run", config, {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    grid = LocalGrid(nodes)

    def connected() -> list[int]:
        done = sum(e["event"] == "round" for e in RunFolder(tmp_path / "run").events())
        finished = sum(e["event"] == "task" for e in RunFolder(tmp_path / "run").events())
        return [node for node in nodes if (done, finished) != (2, 1) or node != NODE + VICTIM]

    grid.get_node_ids = connected  # type: ignore[method-assign]
    result = run_in(tmp_path / "run", grid)
    away = {"replied": 2, "failed": {}, "missing": {str(VICTIM): "not connected"}}
    assert result["rounds_with_fewer_clients"] == [{"task": 2, "round": 1, "op": "train", "clients": 3, **away}]
    expected, bytes_without = in_process_without(tmp_path, {(1, 0): Lost("missing", "not connected")}, method)
    assert weights(tmp_path / "run") == bytes_without
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    shared = "shared.previous_model"
    assert result["traffic"][f"down/train/{shared}"] == expected["traffic"][f"down/train/{shared}"] > 0
