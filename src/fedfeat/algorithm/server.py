"""The server as a method sees it: what it keeps, a network to compute with, and where the run stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedfeat.algorithm.settings import TrainSettings
from fedfeat.algorithm.step import Known, Repeat, Seen, as_it_is
from fedfeat.data.augment import DeviceImages
from fedfeat.models import FlatModel, Network


@dataclass
class ServerState:
    """What the server keeps between rounds, and where it stands; steps of a method may change it."""

    task: int = 0
    round: int = 0  # rounds done in this task
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    numbers: dict[str, float] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Tensor] = field(default_factory=dict)  # made for all clients, delivered to each once
    delivered: dict[str, set[int]] = field(default_factory=dict)  # who has which shared tensor

    @property
    def known(self) -> Known:
        """What predictions may use."""
        return Known(self.numbers, self.tensors)

    def share(self, name: str, value: Tensor) -> None:
        """Make something for all clients; each gets it with its next training request, and it is counted then."""
        self.shared[name] = value
        self.delivered[name] = set()


@dataclass(frozen=True)
class Server:
    """What a server step may use: the server's state, a network to compute with, and where things stand."""

    progress: ServerState
    model: FlatModel  # the resident network; load ``progress.weights`` before using it
    frozen: Callable[[str, Tensor, int], Network]
    images: DeviceImages  # the test images' shape, statistics and device; never their content
    seen: Seen
    seed: int
    settings: TrainSettings
    num_clients: int  # registered, whether they take part or not
    class_names: tuple[str, ...]  # in order of arrival, of the classes seen so far
    folder: Path | None  # where pictures may be written
    repeat: Repeat = as_it_is  # makes work on fixed tensors cheaper to repeat, if the engine knows how
