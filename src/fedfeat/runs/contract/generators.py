"""Random generators that a whole process shares, and who draws from them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from fedfeat.runs.contract.source import Source, place


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Set the generators that belong to nobody, and leave them afterwards as they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def where_they_stand() -> tuple[Any, ...]:
    """Return the states of these generators, to be compared."""
    legacy: Any = np.random.get_state(legacy=False)
    return (
        torch.get_rng_state().numpy().tobytes(),
        legacy["state"]["pos"],
        legacy["state"]["key"].tobytes(),
        random.getstate(),
    )


class Lookout:
    """Runs something line by line and notes the first line of the author's files that moves a generator."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.states = where_they_stand()
        self.line: str | None = None  # the author's line at work
        self.culprit: str | None = None

    def watch(self, work: Callable[[], object]) -> str | None:
        """Return that line, or None if the author's files do not move any."""
        earlier = sys.gettrace()
        sys.settrace(self._call)
        try:
            work()
        finally:
            sys.settrace(earlier)
        return self.culprit

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._look if frame.f_code.co_filename in self.source else None

    def _look(self, frame: FrameType, event: str, arg: Any) -> Any:
        now = where_they_stand()
        if now != self.states:
            self.culprit = self.culprit or self.line
            self.states = now
        back = frame.f_back
        at = back if event == "return" and back is not None else frame
        self.line = place(at.f_code.co_filename, at.f_lineno) if at.f_code.co_filename in self.source else None
        return self._look
