"""A client that keeps silent does not cost every round the whole deadline."""

from __future__ import annotations

from pathlib import Path

import pytest
from dropouts import VICTIM, config_for
from local_grid import NODE, LocalGrid, local_nodes

from fedfeat.algorithm.engine import Lost
from fedfeat.engines.flower.codec import pack
from fedfeat.engines.flower.messages import Reply
from fedfeat.engines.flower.silence import PATIENCE, SHORTEST, Silence
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in

MANY = {"train": {"rounds": 16}, "scenario": {"tasks": 1}}


def test_a_silent_client_rests_and_is_asked_again(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "finetune", MANY, deadline=0.1), {})
    grid = LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz"), lambda n, r: None if n == NODE + VICTIM else r)
    result = run_in(tmp_path / "run", grid)
    asked = sum((node, kind) == (NODE + VICTIM, "ask") for node, kind in grid.asked)
    assert asked == 5, "in rounds 1, 2, 4, 8 and 16"
    assert len(result["rounds_with_fewer_clients"]) == 16


def test_everybody_is_asked_where_the_others_are_too_few(tmp_path: Path) -> None:
    silence = Silence(1.0)
    for _ in range(3):
        silence.note("train", {1: _silent(), 2: _reply(0.1)})
    assert set(silence.resting([1, 2], 1)) == {1}
    assert silence.resting([1, 2], 2) == {}
    silence.note("train", {1: _reply(0.1)})
    silence.note("train", {1: _silent()})
    assert silence.resting([1, 2], 1) == {}, "one that answered begins anew"


@pytest.mark.parametrize(("seen", "expected"), [(0.1, SHORTEST), (6.0, 6.0 * PATIENCE), (90.0, 600.0)])
def test_the_deadline_follows_the_replies(seen: float, expected: float) -> None:
    silence = Silence(600.0)
    assert silence.deadline("train") == 600.0
    silence.note("train", {0: _reply(seen), 1: _reply(seen / 2)})
    assert silence.deadline("train") == expected
    assert silence.deadline("evaluate") == 600.0


def _reply(after: float) -> Reply:
    return Reply({}, pack({}), after)


def _silent() -> Lost:
    return Lost("missing", "no reply within 1 s")
