"""Clients that keep silent: how long one is awaited, and when one that said nothing is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from fedfeat.algorithm.engine import Lost
from fedfeat.engines.flower.messages import NO_REPLY, Reply

PATIENCE = 10.0  # times the slowest reply so far
SHORTEST = 30.0  # seconds that everybody has
LONGEST_REST = 15  # exchanges


class Silence:
    """Who kept silent, and how long replies took.

    A client that is silent a second time in a row is left alone for one exchange, then for three, seven and so on, so
    that it does not cost every round the whole deadline.

    :param most: seconds that a reply may take, whatever was seen.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._slowest: dict[str, float] = {}  # seconds, by operation
        self._silences: Counter[int] = Counter()  # in a row, by client
        self._rests: dict[int, int] = {}  # exchanges that are left

    def deadline(self, op: str) -> float:
        """Return how long replies to an operation are awaited: ten times the slowest so far, all the time at first."""
        seen = self._slowest.get(op)
        return self.most if seen is None else min(self.most, max(PATIENCE * seen, SHORTEST))

    def resting(self, clients: Collection[int], least: int) -> dict[int, Lost]:
        """Return who is not asked now, unless the others would be too few."""
        resting = {k: Lost("missing", f"silent {self._silences[k]} times") for k in clients if self._rests.get(k)}
        for client in resting:
            self._rests[client] -= 1
        return resting if len(clients) - len(resting) >= least else {}

    def note(self, op: str, answers: Mapping[int, Reply | Lost]) -> None:
        """Take in what came of an exchange."""
        for client, answer in answers.items():
            if isinstance(answer, Lost) and answer.reason.startswith(NO_REPLY):
                self._silences[client] += 1
                self._rests[client] = min(2 ** (self._silences[client] - 1) - 1, LONGEST_REST)
            else:
                self._silences.pop(client, None)
                if isinstance(answer, Reply):
                    self._slowest[op] = max(self._slowest.get(op, 0.0), answer.after)
