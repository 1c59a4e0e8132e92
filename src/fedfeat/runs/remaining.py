"""How long a run still takes: from its rounds so far, where a round counts as many times as its task has images."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence


def seconds_left(done: Iterable[tuple[int, float]], images: Sequence[int], rounds: int, at: tuple[int, int]) -> float:
    """Return how many seconds are left, if images take as long as they did so far.

    :param done: task (from 1) and seconds of each round that was timed; at least one.
    :param images: of each task; where they are not known, all the same.
    :param at: task and round that the run has behind it.
    """
    work = [max(count, 1) for count in images]
    timed = [(work[task - 1], seconds) for task, seconds in done]
    task, round = at
    left = rounds * sum(work[task:]) + (rounds - round) * work[task - 1]
    return left * sum(seconds for _, seconds in timed) / sum(size for size, _ in timed)


class Clock:
    """Times the rounds of a run as they come, with all that lies between them."""

    def __init__(self, images: Sequence[int], rounds: int) -> None:
        self.images, self.rounds = images, rounds
        self.begun = self.last = time.monotonic()
        self.done: list[tuple[int, float]] = []

    def left(self, task: int, round: int) -> float:
        """Take note of a finished round and return the seconds that are left after it."""
        now = time.monotonic()
        self.done.append((task, now - self.last))
        self.last = now
        return seconds_left(self.done, self.images, self.rounds, (task, round))

    @property
    def passed(self) -> float:
        """Seconds since the run began, or was taken up again."""
        return time.monotonic() - self.begun


def duration(seconds: float) -> str:
    """Return a time for people, in its one or two largest units."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
