"""A client's images: its share of a public data set or images of its own, and what must not change during a run."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from fedfeat.config.config import Config
from fedfeat.core.errors import DataError
from fedfeat.core.files import write_json
from fedfeat.data import Dataset, load_dataset
from fedfeat.data.owned import class_digests, read_own
from fedfeat.data.settings import OWNED
from fedfeat.scenario import Scenario
from fedfeat.scenario.build import named_classes, named_scenario, scenario_of


def open_data(path: Path | None, config: Config) -> tuple[Dataset, Scenario]:
    """Return the images and who gets which of them; only this client's part is ever looked at.

    :param path: what ``--data`` points to: a folder with one sub-folder per class, or parquet; or where the public data
        set lies on this machine. Unset, where ``fedfeat data`` would look for it.
    """
    if config.data.name == OWNED:
        owned = read_own(path, config.data, named_classes(config.scenario), config.seed)
        return owned, named_scenario(config.scenario, config.seed, owned.train_labels)
    location = {"path": None if path is None else str(path.absolute())}
    dataset = load_dataset(config.data.model_copy(update=location), seed=config.seed)
    return dataset, scenario_of(dataset, config.scenario, config.seed)


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


def read_secret(folder: Path) -> int:
    """Return a number that only this client knows in this run; drawn once and kept on its disk."""
    path = folder / "secret"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(str(secrets.randbits(128)))
    return int(path.read_text())
