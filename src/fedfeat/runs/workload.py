"""What there is to do in each task of an experiment: who trains how often, on how many images, and how often it sends.

Nothing is trained for these numbers. They follow from the scenario, the settings and what a method declares to send.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.sent import OF_THE_CLIENT, Sent
from fedfeat.config.config import Config
from fedfeat.core.payload import SHARED
from fedfeat.scenario import Scenario
from fedfeat.scenario.partition import Ids


class Workload:
    """The numbers of one experiment, task by task (counted from 0); arrays have an entry per registered client.

    A client is reckoned to keep as many exemplars as its quota and its images allow. A rule that hands unused quota
    on to others, and samples that a method holds out, change sizes by a little.
    """

    def __init__(self, config: Config, scenario: Scenario, method: Method, dim: int) -> None:
        self.config, self.scenario, self.method, self.dim = config, scenario, method, dim
        self.rounds = method.rounds(config.train.rounds)
        self.turns = cache(self._turns)
        self.sizes = cache(self._sizes)

    def images(self, task: int) -> int:
        """Images that all clients train on in a task, each as often as it is seen."""
        return self.config.train.local_epochs * int((self.turns(task) * self.sizes(task)).sum())

    def steps(self, task: int) -> int:
        """Training steps of all clients in a task."""
        batches = -(-self.sizes(task) // self.config.train.batch)
        return self.config.train.local_epochs * int((self.turns(task) * batches).sum())

    def exemplars(self, task: int) -> Ids:
        """Exemplars that clients have kept when a task begins."""
        kept = np.zeros(self.scenario.num_clients, dtype=np.int64)
        if self.method.replay is None:
            return kept
        unlimited = getattr(self.method.replay, "unlimited", False)
        for earlier in range(task):
            own = self.scenario.splits[earlier].sizes
            kept += own if unlimited else np.minimum(own, self.scenario.quotas(earlier, self.asked_at_end(earlier)))
        return kept

    def asked_at_end(self, task: int) -> Ids:
        """Clients that are asked at the end of a task."""
        return self.scenario.asked_at_end(task, self.rounds)

    def crossings(self, task: int, entry: str, sent: Sent | None) -> float:
        """Return a number in proportion to the bytes of an entry in a task.

        It is how often the entry crosses, each time with those sizes of its shape that depend on a client's images.
        Between two workloads of the same task all other sizes are the same.
        """
        direction, op, name = entry.split("/", 2)
        if op != "train":
            return float(self._client_sizes(task, sent)[self.asked_at_end(task)].sum())
        turns = self.turns(task, sent is not None and sent.times == "S")
        if name.startswith(SHARED):
            return float((turns > 0).sum())
        if direction == "up" and name != "samples":
            turns = turns * (self.sizes(task) > 0)
        return float((turns * self._client_sizes(task, sent)).sum())

    def late_comers(self, task: int) -> int:
        """Clients that take part in a task, though not in its first round: these are sent the previous model."""
        taken = [set(self.scenario.participants(task, r).tolist()) for r in range(self.rounds)]
        return len(set().union(*taken[1:]) - taken[0]) if taken else 0

    def _turns(self, task: int, active_only: bool = False) -> Ids:
        """Return how many rounds of a task each client takes part in."""
        rounds = self.rounds
        steps = self.method.server_steps if active_only else ()
        chosen = [r for r in range(rounds) if all(s.is_active(r, rounds) for s in steps if hasattr(s, "is_active"))]
        taken = [self.scenario.participants(task, r) for r in chosen]
        return np.bincount(np.concatenate([*taken, np.zeros(0, dtype=np.int64)]), minlength=self.scenario.num_clients)

    def _sizes(self, task: int) -> Ids:
        """Return how many images each client trains on in a round of a task."""
        kept = self.config.train.repeat_exemplars * self.exemplars(task)
        return np.asarray(self.scenario.splits[task].sizes + kept)

    def _client_sizes(self, task: int, sent: Sent | None) -> Ids:
        """Return the product of those sizes of an entry that differ from client to client."""
        product = np.ones(self.scenario.num_clients, dtype=np.int64)
        shape = () if sent is None or sent.shape is None else sent.shape
        for symbol in OF_THE_CLIENT.intersection(str(s) for s in shape):
            product = product * (self.scenario.splits[task].sizes if symbol == "n" else self._classes(task))
        if sent is not None and sent.at_most and "d" in shape:  # a rank: no more than there are images
            product = product * min(len(self.scenario.splits[task].indices), self.dim)
        return product

    def _classes(self, task: int) -> Ids:
        """Return how many classes each client holds, if it has exemplars of as many old ones as it can."""
        held = [(self.scenario.counts(t) > 0).sum(axis=1) for t in range(task + 1)]
        return np.asarray(held[-1] + np.minimum(sum(held[:-1]), self.exemplars(task)))
