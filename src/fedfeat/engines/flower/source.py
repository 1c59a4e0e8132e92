"""Where a client's images come from: its share of a public data set, as the scenario deals it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedfeat.config import Config
from fedfeat.data import Dataset, load_dataset
from fedfeat.scenario import Scenario, build_scenario


class Source(Protocol):
    """Opens the images of one client on its own machine."""

    def open(self, config: Config) -> tuple[Dataset, Scenario]:
        """Return the images and who gets which of them; only this client's part is ever looked at."""


@dataclass(frozen=True)
class PublicShare:
    """A data set that every client has; the seed and the scenario decide which samples are whose.

    :param path: where the data set lies on this machine; unset, where ``fedfeat data`` would look for it.
    """

    path: Path | None = None

    def open(self, config: Config) -> tuple[Dataset, Scenario]:
        """Load the data set and deal it as the server does."""
        location = {"path": None if self.path is None else str(self.path.absolute())}
        dataset = load_dataset(config.data.model_copy(update=location), seed=config.seed)
        scenario = build_scenario(dataset.train_labels, dataset.num_classes, config.scenario, config.seed)
        return dataset, scenario
