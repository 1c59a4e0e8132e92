"""What runs clients: every engine offers this, and the loop knows nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.step import Known, Seen, Work
from fedfeat.algorithm.tables import Tables
from fedfeat.core.payload import Payload, State
from fedfeat.data.augment import DeviceImages
from fedfeat.data.dataset import Dataset
from fedfeat.models import FlatModel, Network

Fate = Literal["failed", "missing"]
NOT_FINITE = "not a finite number, or a tensor with such"


class DropOut(Exception):
    """Raised while a client is asked: it drops out of this exchange, and the run goes on without its reply."""

    def __init__(self, fate: Fate, reason: str) -> None:
        super().__init__(reason)
        self.lost = Lost(fate, reason)


@dataclass(frozen=True)
class Lost:
    """What an engine gives in place of a reply: the client answered that it cannot, or did not answer in time."""

    fate: Fate
    reason: str

    @property
    def diverged(self) -> bool:
        """Whether the client did reply, with numbers that cannot be averaged."""
        return self.reason.endswith(NOT_FINITE)


class Engine(Protocol):
    """Runs clients, holds their states, and evaluates the global model."""

    dataset: Dataset
    method: Method
    device: torch.device
    network: Network
    model: FlatModel  # the resident network and its vector
    test_images: DeviceImages
    class_names: tuple[str, ...]  # of the whole run, in order of arrival
    states: dict[int, State]  # by client: what it keeps between rounds
    touched: set[int]  # clients whose state changed since the last checkpoint
    shared: Mapping[str, Tensor]  # what the server made for all clients
    deferred: (
        dict[str, NDArray[np.int32]] | None
    )  # by "task/op", quotas by client of choices that can wait; None: none can
    lost_state: set[int]  # clients that lost their state: they need the shared tensors again
    task: int
    round: int

    @property
    def seen(self) -> Seen:
        """Where the stream of classes stands."""

    def begin_task(self, task: int, weights: Tensor | None = None) -> Tensor:
        """Grow the head to the task's classes and return the model's vector."""

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Run ``op`` on each client, in the order of ids; one that fails or is too late is ``Lost``."""

    def frozen(self, name: str, vector: Tensor, task: int) -> Network:
        """Return a network that holds a vector of some task, in evaluation mode."""

    def repeat(self, work: Work, touched: Sequence[Tensor]) -> Work:
        """Return the server's work on fixed tensors in a form that is cheaper to repeat, if there is one."""

    def evaluate(self, weights: Tensor, known: Known) -> Tables:
        """Count right and wrong predictions of a model on the test images of all seen classes."""

    def reply_sizes(self, client: int) -> dict[str, int]:
        """Return what a server knows of the sizes in a client's reply."""

    def exemplars(self) -> int:
        """Return how many exemplars all clients keep."""

    def account(self) -> dict[str, Any]:
        """Return what a round's event should say about the way its clients were run."""

    def restore(self, states: Mapping[int, State]) -> None:
        """Take up clients' states from a checkpoint."""
