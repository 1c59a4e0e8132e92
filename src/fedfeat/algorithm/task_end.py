"""The end of a task, as a replay rule sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedfeat.algorithm.server import Server
from fedfeat.core.payload import Payload


class Exchange(Protocol):
    """How the server asks clients; whoever drops out is left out of what comes back."""

    def __call__(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Ask clients and yield ``(client, reply)`` in the order of ids; a reply is valid until the next one."""

    def gather(self, op: str, requests: Mapping[int, Payload]) -> dict[int, Payload]:
        """Ask clients and return all replies at once."""


@dataclass(frozen=True)
class TaskEnd:
    """What a selection may use: the final model, each present client's quota, and the exchange."""

    exchange: Exchange
    task: int
    num_new: int  # classes of the finished task
    weights: Tensor
    quotas: Mapping[int, int]  # exemplars that each present client may keep from this task
    shares_budget: bool  # what a client cannot use may go to others
    seed: int
    server: Server

    def final_model(self) -> dict[int, Payload]:
        """Return a request with the final model for every present client, in the order of their ids."""
        return {k: {"weights": self.weights} for k in sorted(self.quotas)}

    def model_and_quota(self) -> dict[int, Payload]:
        """Return a request with the final model and its quota for every client that may keep something."""
        return {k: {"weights": self.weights, "quota": self.quotas[k]} for k in self.keepers}

    @property
    def budget(self) -> int:
        """Exemplars that the federation may keep from this task."""
        return sum(self.quotas.values())

    @property
    def keepers(self) -> list[int]:
        """Clients with a quota, in the order of their ids: nobody else needs to be asked."""
        return sorted(k for k, quota in self.quotas.items() if quota > 0)
