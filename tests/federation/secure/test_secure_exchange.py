"""Masked sums with drop-outs: the same bytes as bare replies added up, whoever leaves in whichever phase."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_toys import MASKED, ToyEngine, asked, config_with, trained

from fedfeat.core.payload import Payload, tensor_of
from fedfeat.federation.exchange import TooFewClients
from fedfeat.federation.secure.client import KEYS, SHARES, UNMASK
from fedfeat.federation.secure.exchange import JOINED

PHASES = (KEYS, SHARES, MASKED, UNMASK)


def replies_of(clients: int, size: int, seed: int) -> dict[int, Payload]:
    """Updates of different clients, one of which has no samples."""
    rng = np.random.default_rng(seed)
    found = {
        k: trained(rng.normal(0, 3, size).astype(np.float32).tolist(), int(rng.integers(1, 99))) for k in range(clients)
    }
    return {**found, clients - 1: {"samples": 0}}


def bare_sum(config: Any, replies: dict[int, Payload], weights: list[float], survivors: set[int]) -> Payload:
    """What the simulation makes of the replies of those who stayed."""
    engine = ToyEngine(config, replies)
    engine.away[MASKED] = set(replies) - survivors
    return engine.exchange().gather("train", asked(len(replies), weights))[JOINED]


def same(one: Payload, other: Payload) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(torch.as_tensor(one[k]), torch.as_tensor(other[k])) for k in one)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(3, 7), st.integers(1, 20), st.integers(0, 2**32), st.data())
def test_sums_are_those_of_bare_replies_whoever_leaves(clients: int, size: int, seed: int, data: st.DataObject) -> None:
    config, replies = config_with(clients), replies_of(clients, size, seed)
    spare = clients - max(3, clients // 2 + 1)
    gone = data.draw(st.dictionaries(st.integers(0, clients - 1), st.sampled_from(PHASES), max_size=spare))
    with tempfile.TemporaryDirectory() as folder:
        engine = ToyEngine(config, replies, Path(folder))
        for phase in PHASES:
            engine.away[phase] = {k for k, left in gone.items() if PHASES.index(left) <= PHASES.index(phase)}
        exchange = engine.exchange()
        weights = np.random.default_rng(seed + 1).normal(size=size).astype(np.float32).tolist()
        found = exchange.gather("train", asked(clients, weights))[JOINED]
    survivors = {k for k in range(clients) if gone.get(k, UNMASK) == UNMASK}
    (outcome,) = exchange.take_outcomes()
    assert outcome.replied == sorted(survivors)
    assert set(outcome.lost) == set(range(clients)) - survivors
    assert same(found, bare_sum(config, replies, weights, survivors))


@pytest.mark.parametrize("phase", PHASES)
def test_a_drop_out_in_any_phase_costs_no_more_than_its_reply(phase: str, tmp_path: Path) -> None:
    config, replies = config_with(5), replies_of(5, 3, 1)
    engine = ToyEngine(config, replies, tmp_path)
    engine.away[phase] = {1}
    found = engine.exchange().gather("train", asked(5, [0.0] * 3))[JOINED]
    assert same(found, bare_sum(config, replies, [0.0] * 3, {0, 1, 2, 3, 4} - ({1} if phase != UNMASK else set())))


@pytest.mark.parametrize("phase", PHASES)
def test_too_few_end_the_run_and_the_same_sum_goes_on_when_they_are_back(phase: str, tmp_path: Path) -> None:
    config, replies = config_with(3), replies_of(3, 3, 2)
    engine = ToyEngine(config, replies, tmp_path)
    engine.away[phase] = {0, 2} if phase == UNMASK else {2}
    with pytest.raises(TooFewClients, match=r"a masked sum needs [23] .*bring clients back and resume"):
        engine.exchange().gather("train", asked(3, [0.0] * 3))
    engine.away.clear()
    found = engine.exchange().gather("train", asked(3, [0.0] * 3))[JOINED]
    assert same(found, bare_sum(config, replies, [0.0] * 3, {0, 1, 2}))


@pytest.mark.parametrize("phase", PHASES)
def test_a_server_that_was_killed_goes_on_with_the_same_sum(phase: str, tmp_path: Path) -> None:
    """Killed before it noted a phase that clients had answered; then one is gone, and one that was away is there."""
    config, replies = config_with(5), replies_of(5, 3, 3)
    engine = ToyEngine(config, replies, tmp_path)
    engine.away = {p: {4} for p in PHASES[: PHASES.index(phase)]}
    ask = engine.ask

    def killed(op: str, requests: Any) -> Any:
        answers = list(ask(op, requests))
        if op.endswith(phase) or (phase == MASKED and op == "train"):
            raise KeyboardInterrupt
        return answers

    engine.ask = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.exchange().gather("train", asked(5, [0.0] * 3))
    told = {k: tensor_of(reply, KEYS) for k, reply in engine.seen[KEYS].items()}
    engine.ask, engine.away = ask, {p: {3} for p in PHASES}  # type: ignore[method-assign]
    found = engine.exchange().gather("train", asked(5, [0.0] * 3))[JOINED]
    # Whoever's masked reply had come is in the sum, here or not, and nobody has other keys than before.
    survivors = {KEYS: {0, 1, 2, 4}, UNMASK: {0, 1, 2, 3}}.get(phase, {0, 1, 2})
    assert same(found, bare_sum(config, replies, [0.0] * 3, survivors))
    assert all(torch.equal(key, tensor_of(engine.seen[KEYS][k], KEYS)) for k, key in told.items())
    again = engine.exchange().gather("train", asked(5, [0.0] * 3))[JOINED]
    assert same(found, again)


def test_no_key_or_mask_serves_twice(tmp_path: Path) -> None:
    engine = ToyEngine(config_with(3), {k: trained([1.0] * 50) for k in range(3)}, tmp_path)
    keys, masked = [], []
    for task, round in ((0, 0), (0, 1), (0, 2), (1, 0)):
        engine.task, engine.round = task, round
        engine.exchange().gather("train", asked(3, [0.0] * 50))
        keys += [tensor_of(reply, KEYS).numpy().tobytes() for reply in engine.seen[KEYS].values()]
        masked += [tensor_of(reply, "weights").clone() for reply in engine.seen[MASKED].values()]
    parts = [key[at : at + 32] for key in keys for at in (0, 32, 64)]
    assert len(set(parts)) == 3 * 4 * 3
    # The same reply under two masks, and masks of two clients: not even differences repeat.
    differences = {(masked[i] - masked[j]).numpy().tobytes() for i in range(12) for j in range(i)}
    assert len(differences) == 12 * 11 / 2
    assert sum(path.name.endswith(".safetensors") for path in (tmp_path / "server").iterdir()) == 2
    assert len(engine.client(0).sessions) == 2


def test_the_rows_of_a_sum_reach_the_server_through_no_bare_entry(tmp_path: Path) -> None:
    """Of 2,000 equal numbers, what the server sees of one client has nothing in common with them."""
    engine = ToyEngine(config_with(3), {k: trained([0.5] * 2000, 77) for k in range(3)}, tmp_path)
    engine.exchange().gather("train", asked(3, [0.0] * 2000))
    for reply in engine.seen[MASKED].values():
        assert len(tensor_of(reply, "weights").unique()) > 1990
        assert int(tensor_of(reply, "samples")[0]) != 77
        assert set(tensor_of(reply, "behind").tolist()) != {1}


@pytest.mark.parametrize(("clients", "usable"), [(5, True), (3, False)])
def test_a_wrong_share_is_noticed(clients: int, usable: bool, tmp_path: Path) -> None:
    """Of five shares three are needed, so a wrong one is left out; of three survivors and three needed it cannot be."""
    config = config_with(clients, privacy={"threshold": 1.0} if clients == 3 else {})
    replies = replies_of(clients, 3, 4)
    engine = ToyEngine(config, replies, tmp_path)
    engine.spoil[UNMASK, 0] = lambda reply: {SHARES: tensor_of(reply, SHARES) ^ 1}
    exchange = engine.exchange()
    found = exchange.gather("train", asked(clients, [0.0] * 3))
    if usable:
        assert same(found[JOINED], bare_sum(config, replies, [0.0] * 3, set(range(clients))))
    else:
        assert found == {}
        assert "shares of client 0's masks" in exchange.take_outcomes()[0].discarded


def test_a_client_that_seals_nonsense_spoils_its_round_and_is_named(tmp_path: Path) -> None:
    engine = ToyEngine(config_with(3), replies_of(3, 3, 7), tmp_path)
    engine.spoil[SHARES, 1] = lambda reply: {SHARES: tensor_of(reply, SHARES) ^ 1}
    exchange = engine.exchange()
    assert exchange.gather("train", asked(3, [0.0] * 3)) == {}
    assert "the shares of client 1's masks do not fit together" in exchange.take_outcomes()[0].discarded


def test_keys_that_nobody_can_agree_with_cost_their_client_alone(tmp_path: Path) -> None:
    config, replies = config_with(5), replies_of(5, 3, 8)
    engine = ToyEngine(config, replies, tmp_path)
    engine.spoil[KEYS, 1] = lambda reply: {KEYS: torch.zeros_like(tensor_of(reply, KEYS))}
    found = engine.exchange().gather("train", asked(5, [0.0] * 3))[JOINED]
    assert same(found, bare_sum(config, replies, [0.0] * 3, {0, 2, 3, 4}))


def test_replies_of_another_form_cost_their_client_alone(tmp_path: Path) -> None:
    config, replies = config_with(5), replies_of(5, 3, 5)
    engine = ToyEngine(config, replies, tmp_path)
    engine.spoil[MASKED, 1] = lambda reply: {**reply, "weights": torch.zeros(4, dtype=torch.int32)}
    engine.spoil[SHARES, 2] = lambda reply: {SHARES: torch.zeros(1, 7, dtype=torch.uint8)}
    exchange = engine.exchange()
    found = exchange.gather("train", asked(5, [0.0] * 3))[JOINED]
    assert same(found, bare_sum(config, replies, [0.0] * 3, {0, 3, 4}))
    assert exchange.take_outcomes()[0].record()["failed"].keys() == {"1", "2"}


def test_a_client_that_diverged_says_so_and_is_left_out(tmp_path: Path) -> None:
    replies = replies_of(5, 3, 6) | {1: trained([0.0, float("nan"), 0.0])}
    engine = ToyEngine(config_with(5), replies, tmp_path)
    exchange = engine.exchange()
    exchange.gather("train", asked(5, [0.0] * 3))
    assert exchange.take_outcomes()[0].lost[1].diverged
