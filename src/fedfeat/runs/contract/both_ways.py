"""Two engines that train the same clients in every round: their replies must agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fedfeat.algorithm.engine import Lost
from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.core.payload import Payload, copied
from fedfeat.data.dataset import Dataset
from fedfeat.engines.base import BaseEngine
from fedfeat.engines.cuda.engine import CudaEngine
from fedfeat.engines.factory import make_engine
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.scenario import Scenario

NEAR = 1e-4  # relative; engines add numbers up in different orders


class Backwards(InProcessEngine):
    """Asks clients from the last to the first; replies come in the order of ids, as always."""

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Run an op on each client."""
        replies: dict[int, Payload | Lost] = {}
        for client in sorted(requests, reverse=True):
            replies |= kept(super().ask(op, {client: requests[client]}))
        yield from sorted(replies.items())


class AtOnce(InProcessEngine):
    """Lets clients make every choice when they are asked, as a federation does."""

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> None:
        super().__init__(config, dataset, scenario, method)
        self.can_wait.clear()


class BothWays(InProcessEngine):
    """Trains clients one by one and by the engine of the configuration.

    The run goes on from the former, so rounding does not add up.
    """

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> None:
        super().__init__(config, dataset, scenario, method)
        self.other = make_engine(config, dataset, scenario, method)
        self.used = 0  # rounds in which the second engine had a way of its own
        self.difference: str | None = None  # the first one, in words

    def begin_task(self, task: int, weights: Tensor | None = None) -> Tensor:
        """Grow the heads of both."""
        self.other.begin_task(task, weights)
        return super().begin_task(task, weights)

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Train both ways; every other op runs once."""
        if op != "train":
            yield from super().ask(op, requests)
            return
        other = self.other
        other.round, other.shared = self.round, self.shared
        for client in requests:
            self.settle(client)
        other.states = {client: dict(state) for client, state in self.states.items()}
        theirs = kept(other.ask(op, requests))
        captured = isinstance(other, CudaEngine) and bool(other.replicas)
        self.used += captured or other.vectorised.takes(requests)
        ours = kept(BaseEngine.ask(self, op, requests))  # never vectorised
        found = difference(ours, theirs)
        if found is not None and self.difference is None:
            self.difference = f"in task {self.task + 1}, round {self.round + 1}, {found}"
        yield from ours.items()


def kept(replies: Iterator[tuple[int, Any]]) -> dict[int, Any]:
    """Return replies with tensors of their own: an engine may write over those it gave."""
    return {client: reply if isinstance(reply, Lost) else copied(reply) for client, reply in replies}


def difference(ours: Mapping[int, Payload], theirs: Mapping[int, Payload]) -> str | None:
    """Return the first entry of the first client in which replies differ, in words."""
    for client, reply in ours.items():
        other = theirs.get(client, {})
        for name in {**reply, **other}:
            distance = _distance(reply.get(name), other.get(name))
            if not distance < NEAR:
                return f"{name!r} of client {client} differs by {distance:.2g} of its size"
    return None


def _distance(a: Any, b: Any) -> float:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
        a, b = a.double().cpu(), b.double().cpu()
        return float((a - b).norm() / b.norm().clamp(min=1e-6))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) / max(abs(b), 1.0)
    return 0.0 if isinstance(a, str) and a == b else float("inf")
