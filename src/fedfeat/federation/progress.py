"""All that the server knows of a run; with the clients' states this is a whole checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfeat.algorithm.server import ServerState
from fedfeat.algorithm.tables import Tables
from fedfeat.federation.exchange import Traffic


@dataclass
class Progress(ServerState):
    """The server's state, what it measured so far, and the best model of the task."""

    finished: bool = False  # the task was selected from and evaluated
    tables: list[Tables] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    deferred: dict[str, NDArray[np.int32]] = field(default_factory=dict)  # see ``Engine.deferred``
    best_loss: float = float("inf")
    best_weights: Tensor | None = None
    best_numbers: dict[str, float] = field(default_factory=dict)  # those that belong to the best weights
    images_trained: int = 0
    seconds: float = 0.0  # spent in rounds
    shortfalls: list[dict[str, Any]] = field(default_factory=list)  # exchanges that not every asked client answered
    lost_states: list[dict[str, Any]] = field(default_factory=list)  # where clients lost theirs, and exemplars left

    def move_to(self, device: torch.device) -> None:
        """Put every tensor on a device, after a checkpoint was read."""
        self.weights = self.weights.to(device)
        self.best_weights = None if self.best_weights is None else self.best_weights.to(device)
        self.tensors = {name: t.to(device) for name, t in self.tensors.items()}
        self.shared = {name: t.to(device) for name, t in self.shared.items()}
