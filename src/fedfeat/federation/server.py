"""The server's side of a round: the average, the numbers it keeps, the model it ends a task with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedfeat.config import Config
from fedfeat.data.augment import DeviceImages
from fedfeat.evaluate.counting import Tables
from fedfeat.federation.exchange import Traffic
from fedfeat.federation.payload import Payload, number_of, tensor_of
from fedfeat.methods.method import Known, Seen
from fedfeat.models import FlatModel, Network
from fedfeat.repeat import Repeat, as_it_is
from fedfeat.scenario.record import MAX_LISTED_CLIENTS


@dataclass
class Progress:
    """All that the server knows, and where it stands: with the clients' states this is a whole checkpoint."""

    task: int = 0
    round: int = 0  # rounds done in this task
    finished: bool = False  # the task was selected from and evaluated
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    numbers: dict[str, float] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Tensor] = field(default_factory=dict)  # made for all clients, delivered to each once
    delivered: dict[str, set[int]] = field(default_factory=dict)  # who has which shared tensor
    tables: list[Tables] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    best_loss: float = float("inf")
    best_weights: Tensor | None = None
    best_numbers: dict[str, float] = field(default_factory=dict)  # those that belong to the best weights
    images_trained: int = 0
    seconds: float = 0.0  # spent in rounds
    shortfalls: list[dict[str, Any]] = field(default_factory=list)  # exchanges that not every asked client answered

    @property
    def known(self) -> Known:
        """What predictions may use."""
        return Known(self.numbers, self.tensors)

    def move_to(self, device: torch.device) -> None:
        """Put every tensor on a device, after a checkpoint was read."""
        self.weights = self.weights.to(device)
        self.best_weights = None if self.best_weights is None else self.best_weights.to(device)
        self.tensors = {name: t.to(device) for name, t in self.tensors.items()}
        self.shared = {name: t.to(device) for name, t in self.shared.items()}

    def share(self, name: str, value: Tensor) -> None:
        """Make something for all clients; each gets it with its next training request, and it is counted then."""
        self.shared[name] = value
        self.delivered[name] = set()


@dataclass(frozen=True)
class Server:
    """What a server step may use: the server's progress, a network to compute with, and where things stand."""

    progress: Progress
    model: FlatModel  # the resident network; load ``progress.weights`` before using it
    frozen: Callable[[str, Tensor, int], Network]
    images: DeviceImages  # the test images' shape, statistics and device; never their content
    seen: Seen
    config: Config
    class_names: tuple[str, ...]  # in order of arrival, of the classes seen so far
    folder: Path | None  # where pictures may be written
    repeat: Repeat = as_it_is  # makes work on fixed tensors cheaper to repeat, if the engine knows how


@dataclass(frozen=True)
class Average:
    """What a round's replies add up to."""

    weights: Tensor | None  # None when no client had a sample
    replies: dict[int, Payload]  # by client, without the weights
    samples: int


def average(replies: Iterable[tuple[int, Payload]], how: Literal["uniform", "samples"]) -> Average:
    """Average the clients' vectors, BatchNorm's running statistics included, one reply at a time."""
    total: Tensor | None = None
    mass = 0.0
    kept: dict[int, Payload] = {}
    samples = 0
    for client, reply in replies:
        count = int(number_of(reply, "samples"))
        if count == 0:
            continue
        weight = 1.0 if how == "uniform" else float(count)
        vector = tensor_of(reply, "weights")
        total = vector * weight if total is None else total.add_(vector, alpha=weight)
        mass += weight
        samples += count
        kept[client] = {k: v for k, v in reply.items() if k != "weights"}
    return Average(None if total is None else total.div_(mass), kept, samples)


def mean_losses(replies: Sequence[Payload]) -> dict[str, float]:
    """Return each loss term averaged over clients by their samples."""
    names = sorted({k for r in replies for k in r if k.startswith("loss.")})
    means = {}
    for name in names:  # a term may be active for some clients only
        values = [(number_of(r, name), number_of(r, "samples")) for r in replies if name in r]
        means[name.removeprefix("loss.")] = float(np.average([v for v, _ in values], weights=[n for _, n in values]))
    return means


def client_losses(replies: Mapping[int, Payload], most: int = MAX_LISTED_CLIENTS) -> dict[str, float]:
    """Return the sum of all loss terms of each client that trained; nothing for more clients than a log can list."""
    if len(replies) > most:
        return {}
    return {
        str(client): sum(number_of(reply, k) for k in reply if k.startswith("loss.") and k != "loss.first_epoch")
        for client, reply in sorted(replies.items())
    }
