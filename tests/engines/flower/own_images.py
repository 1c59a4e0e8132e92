"""Small image folders of several owners: classes are bright squares at different places, in noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedfeat.config.config import Config, make_config
from toy import toy_table

TASKS = [["cat", "dog"], ["ship", "truck"]]
PLACES = {"cat": (0, 0), "dog": (0, 5), "ship": (5, 0), "truck": (5, 5), "zebra": (3, 3)}
OWNERS = {
    "clinic-a": {"cat": 20, "ship": 15},
    "clinic-b": {"cat": 10, "dog": 20, "truck": 20, "zebra": 4},
    "clinic-c": {"ship": 10, "truck": 15},  # nothing of task 1
}


def write_images(folder: Path, name: str, count: int, *, size: int = 8, seed: int = 0) -> None:
    """Write grey PNG files of one class."""
    rng = np.random.default_rng([seed, *folder.name.encode(), *name.encode()])
    (folder / name).mkdir(parents=True, exist_ok=True)
    row, column = PLACES[name]
    for number in range(count):
        image = rng.integers(0, 70, (8, 8), dtype=np.uint8)
        image[row : row + 3, column : column + 3] += 170
        Image.fromarray(image).resize((size, size), Image.Resampling.NEAREST).save(
            folder / name / f"{seed}-{number:03d}.png"
        )


def write_owners(root: Path) -> dict[str, Path]:
    """Write everybody's folder; the second owner has larger pictures."""
    for owner, classes in OWNERS.items():
        for name, count in classes.items():
            write_images(root / owner, name, count, size=16 if owner == "clinic-b" else 8)
    return {owner: root / owner for owner in OWNERS}


def own_config(method: str, **changes: Any) -> Config:
    """Return a quick experiment on such folders."""
    table = toy_table(
        method=method,
        data={"name": "owned", "image_shape": [8, 8, 1]},
        train={"rounds": 4, "lr": 0.1},
        engine={"name": "flower"},
    )
    table["scenario"] = {"task_names": TASKS, "clients": len(OWNERS), "budget": 12}
    for key, value in changes.items():
        table[key] = {**table[key], **value} if isinstance(table.get(key), dict) else value
    return make_config(table)
