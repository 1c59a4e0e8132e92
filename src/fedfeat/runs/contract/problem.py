"""A toy problem that every method can run in a second: six classes of bright squares in noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.core.settings import merge
from fedfeat.data.dataset import Images, Labels
from fedfeat.scenario import Scenario, ScenarioSettings
from fedfeat.scenario.partition import Split

NUM_CLASSES, TASKS, CLIENTS, ROUNDS = 6, 3, 3, 2
PER_CLASS, TESTED = 24, 10  # images of a class, to train on and to test with
BUDGET = 6  # exemplars per finished task, in the whole federation


def toy_images(per_class: int, seed: int) -> tuple[Images, Labels]:
    """Draw images of all classes: each has its place for a bright rectangle."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(NUM_CLASSES), per_class)
    images = rng.integers(0, 90, (len(labels), 8, 8, 1))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 3)
        image[row * 4 : row * 4 + 3, column * 3 : column * 3 + 2] += 150
    return images.astype(np.uint8), labels.astype(np.int64)


def write_toy(path: Path) -> Path:
    """Write them as a file, for runs that are resumed."""
    train, test = toy_images(PER_CLASS, 0), toy_images(TESTED, 1)
    np.savez(path, x=train[0], y=train[1], xt=test[0], yt=test[1])
    return path


def toy_table(**changes: Any) -> dict[str, Any]:
    """Return the experiment as nested tables, with changes to some of them."""
    table = {
        "seed": 7,
        "data": {"name": "npz"},
        "scenario": {"tasks": TASKS, "clients": CLIENTS, "budget": BUDGET},
        "model": {"name": "small-cnn", "width": 8},
        "train": {"rounds": ROUNDS, "local_epochs": 2, "batch": 8, "lr": 0.05},
        "engine": {"device": "cpu", "threads": 1},
        "run": {"checkpoint_seconds": 0},
    }
    return merge(table, changes)


def scenario_from(labels: Labels, samples: list[list[list[int]]]) -> Scenario:
    """Return a scenario with explicit sample indices: ``samples[task][client]``."""
    tasks, clients = len(samples), len(samples[0])
    per_task = NUM_CLASSES // tasks
    splits = tuple(
        Split.of(np.array([i for c in task for i in c], dtype=np.int64), np.array([len(c) for c in task]))
        for task in samples
    )
    return Scenario(
        class_order=tuple(range(NUM_CLASSES)),
        task_classes=tuple(range(t * per_task, (t + 1) * per_task) for t in range(tasks)),
        settings=ScenarioSettings(tasks=tasks, clients=clients, budget=BUDGET, min_samples=0),
        seed=7,
        labels=labels,
        present_clients=(np.arange(clients),) * tasks,
        splits=splits,
    )
