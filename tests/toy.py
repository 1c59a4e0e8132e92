"""A toy problem that every method can run in a second: six classes of bright squares in noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.config import Config, make_config
from fedfeat.data.dataset import Augmentation, Dataset
from fedfeat.scenario import Scenario, ScenarioSettings
from fedfeat.scenario.partition import Split

NUM_CLASSES = 6
PER_CLASS = 24
TIMING = ("seconds", "images_per_second")


def toy_images(per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(NUM_CLASSES), per_class)
    images = rng.integers(0, 90, (len(labels), 8, 8, 1))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 3)
        image[row * 4 : row * 4 + 3, column * 3 : column * 3 + 2] += 150
    return images.astype(np.uint8), labels.astype(np.int64)


def toy_dataset(augmentation: Augmentation | None = None) -> Dataset:
    train, test = toy_images(PER_CLASS, 0), toy_images(10, 1)
    names = tuple(f"square-{c}" for c in range(NUM_CLASSES))
    return Dataset("toy", *train, *test, names, (0.25,), (0.25,), augmentation or Augmentation(1, False, 0.1))


def write_toy(path: Path) -> Path:
    train, test = toy_images(PER_CLASS, 0), toy_images(10, 1)
    np.savez(path, x=train[0], y=train[1], xt=test[0], yt=test[1])
    return path


def toy_table(**changes: Any) -> dict[str, Any]:
    table: dict[str, Any] = {
        "seed": 7,
        "data": {"name": "npz"},
        "scenario": {"tasks": 3, "clients": 3, "budget": 6},
        "model": {"name": "small-cnn", "width": 8},
        "train": {"rounds": 2, "local_epochs": 2, "batch": 8, "lr": 0.05},
        "engine": {"device": "cpu", "threads": 1},
        "run": {"checkpoint_seconds": 0},
        "target": {"batch": 8, "generation": {"rounds": 3, "batch": 8, "steps": 2, "warmup": 1, "student_steps": 2}},
        "fedfsa": {"server_epochs": 5, "text": {"dim": 24}},
        "lander": {
            "batch": 8,
            "generation": {
                "rounds": 2,
                "batch": 8,
                "steps": 2,
                "warmup": 1,
                "student_steps": 2,
                "adversarial_delay": 1,
            },
        },
    }
    for key, value in changes.items():
        table[key] = {**table[key], **value} if isinstance(table.get(key), dict) else value
    return table


def toy_config(method: str, **changes: Any) -> Config:
    return make_config(toy_table(method=method, **changes))


def scenario_from(labels: np.ndarray, samples: list[list[list[int]]]) -> Scenario:
    """A scenario with explicit sample indices: samples[task][client]."""
    clients = len(samples[0])
    tasks = len(samples)
    per_task = NUM_CLASSES // tasks
    splits = tuple(
        Split.of(np.array([i for c in task for i in c], dtype=np.int64), np.array([len(c) for c in task]))
        for task in samples
    )
    return Scenario(
        class_order=tuple(range(NUM_CLASSES)),
        task_classes=tuple(range(t * per_task, (t + 1) * per_task) for t in range(tasks)),
        settings=ScenarioSettings(tasks=tasks, clients=clients, budget=6, min_samples=0),
        seed=7,
        labels=labels,
        present_clients=(np.arange(clients),) * tasks,
        splits=splits,
    )


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k not in TIMING}
