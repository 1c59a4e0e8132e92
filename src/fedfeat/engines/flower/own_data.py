"""Clients that own their data: where their images come from, and what must stay the same while a run goes on."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedfeat.config import Config
from fedfeat.core.errors import DataError
from fedfeat.core.files import write_json
from fedfeat.data import Dataset
from fedfeat.data.owned import class_digests, read_own
from fedfeat.data.settings import OWNED
from fedfeat.engines.flower.source import PublicShare
from fedfeat.scenario import Scenario
from fedfeat.scenario.named import named_classes, named_scenario


@dataclass(frozen=True)
class OwnImages:
    """Images of the client's own, by class name.

    :param path: a folder with one sub-folder per class, or parquet.
    """

    path: Path | None = None

    def open(self, config: Config) -> tuple[Dataset, Scenario]:
        """Read the images of the classes that the server's tasks name; there may be none."""
        dataset = read_own(self.path, config.data, named_classes(config.scenario), config.seed)
        return dataset, named_scenario(config.scenario, config.seed, dataset.train_labels)


@dataclass(frozen=True)
class ClientData:
    """What ``--data`` points to: the client's own images, or a public data set, as the server's configuration says."""

    path: Path | None = None

    def open(self, config: Config) -> tuple[Dataset, Scenario]:
        """Open whichever it is."""
        kind = OwnImages if config.data.name == OWNED else PublicShare
        return kind(self.path).open(config)


def check_unchanged(folder: Path, dataset: Dataset, scenario: Scenario, task: int) -> None:
    """Refuse images that changed in classes of tasks up to this one (from 0; -1 before the first).

    Exemplars are remembered by their place among the images. Classes of later tasks may still change.
    """
    path, digests = folder / "images.json", class_digests(dataset)
    seen = scenario.seen_classes(task) if task >= 0 else 0
    before = json.loads(path.read_text()) if path.exists() else digests
    changed = [dataset.class_names[c] for c in range(seen) if before[c] != digests[c]]
    if changed:
        raise DataError(
            f"the images of {', '.join(changed)} are not those that this client began the run with; restore them, or "
            f"remove {folder} to take part without exemplars"
        )
    write_json(path, digests)


def secret_of(folder: Path) -> int:
    """Return a number that only this client knows in this run; drawn once and kept on its disk."""
    path = folder / "secret"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(str(secrets.randbits(128)))
    return int(path.read_text())


def classes_nobody_has(names: tuple[str, ...], holdings: Mapping[int, list[str]]) -> list[str]:
    """Return the classes of a run of which no connected client has an image."""
    held = {name for classes in holdings.values() for name in classes}
    return [name for name in names if name not in held]
