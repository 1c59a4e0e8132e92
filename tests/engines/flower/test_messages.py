"""Replies that were announced and never come: what they cost the others."""

from __future__ import annotations

import sys
import time
from types import ModuleType

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from local_grid import LocalGrid

from fedfeat.engines.flower import messages
from fedfeat.engines.flower.messages import Channel, pull_before


def never(object_id: str) -> bytes:
    raise ObjectUnavailableError(object_id)


def test_a_reply_that_does_not_come_takes_a_third_of_the_time_that_is_left() -> None:
    began = time.monotonic()
    with pytest.raises(ObjectPullError):
        pull_before(began + 4.5, ["a", "b"], never)
    assert 1.2 < time.monotonic() - began < 3.5
    assert pull_before(began, ["a"], lambda name: name.encode()) == {"a": b"a"}, (
        "what is there comes even after the end"
    )


def test_every_exchange_sets_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ModuleType("a grid")
    monkeypatch.setitem(sys.modules, messages.HTTP_GRID, grid)
    began = time.monotonic()
    assert list(Channel(LocalGrid({})).send("hello", {}, 20.0)) == []
    if messages.is_tested_version():
        assert grid.pull_objects.func is pull_before
        assert began + 20 <= grid.pull_objects.args[0] <= time.monotonic() + 20
