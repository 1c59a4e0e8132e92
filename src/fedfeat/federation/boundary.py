"""The end of a task, as a replay rule sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedfeat.federation.exchange import Exchange
from fedfeat.federation.server import Server


@dataclass(frozen=True)
class Boundary:
    """What a selection may use: the final model, each present client's quota, and the exchange."""

    exchange: Exchange
    task: int
    num_new: int  # classes of the finished task
    weights: Tensor
    quotas: Mapping[int, int]  # exemplars that each present client may keep from this task
    shares_budget: bool  # what a client cannot use may go to others
    seed: int
    server: Server

    @property
    def budget(self) -> int:
        """Exemplars that the federation may keep from this task."""
        return sum(self.quotas.values())

    @property
    def keepers(self) -> list[int]:
        """Clients with a quota, in the order of their ids: nobody else needs to be asked."""
        return sorted(k for k, quota in self.quotas.items() if quota > 0)
