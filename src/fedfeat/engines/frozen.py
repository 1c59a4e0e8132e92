"""Networks that hold somebody's weights without being trained: teachers, earlier models."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedfeat.models import FlatModel, Network
from fedfeat.scenario import Scenario


class FrozenNetworks:
    """One resident network per name and task, in evaluation mode; asking again loads other weights into it."""

    def __init__(self, new_network: Callable[[], Network], scenario: Scenario) -> None:
        self.new_network, self.scenario = new_network, scenario
        self._kept: dict[tuple[str, int], FlatModel] = {}

    def __call__(self, name: str, vector: Tensor, task: int) -> Network:
        """Return the network that now holds a vector of some task."""
        model = self._kept.get((name, task))
        if model is None:
            network = self.new_network().requires_grad_(False)
            for step in range(task + 1):
                network.head.grow(self.scenario.seen_classes(step), step)
            model = FlatModel(network.requires_grad_(False))
            self._kept[name, task] = model
        model.load(vector)
        return model.network.eval()

    def clear(self) -> None:
        """Let all of them go."""
        self._kept.clear()
