"""Named experiments: each is a function of nothing that returns a complete configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Table = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """A named configuration."""

    name: str
    summary: str
    table: Callable[[], Table]


SMALL_LANDER = {
    "rounds": 8,
    "warmup": 2,
    "batch": 64,
    "steps": 20,
    "student_steps": 20,
    "input_statistics": "data",
}


def digits() -> Table:
    """The demonstration: few exemplars, skewed clients, two minutes on two cores."""
    return {
        "method": "fedcbdr+feat",
        "seed": 2023,
        "data": {"name": "digits"},
        "scenario": {"tasks": 5, "clients": 5, "beta": 0.5, "budget": 14},
        "train": {"rounds": 10, "local_epochs": 2, "batch": 32, "lr": 0.05},
        "engine": {"device": "cpu", "threads": 1},
        "finetune": {"softmax": "all"},
        "fedcbdr": {"mode": "class_quota"},
        "feat": {"logits": "cosine"},
        "target": {"batch": 32, "generation": {"rounds": 8, "warmup": 4, "batch": 128, "student_steps": 20}},
        "lander": {"batch": 32, "generation": SMALL_LANDER},
    }


def published(data: str, tasks: int, budget: int, beta: float) -> Callable[[], Table]:
    """Return the paper's setting for one data set and number of tasks (five clients)."""

    def table() -> Table:
        return {
            "method": "fedcbdr+feat",
            "seed": 2023,
            "data": {"name": data},
            "scenario": {"tasks": tasks, "clients": 5, "beta": beta, "budget": budget},
        }

    return table


PRESETS: dict[str, Preset] = {
    p.name: p
    for p in (
        Preset("digits", "built-in digits, 5 tasks, 5 skewed clients, 14 exemplars per task", digits),
        Preset(
            "cifar10-3",
            "CIFAR-10 in 3 tasks (3/3/4), 450 exemplars per task",
            published("cifar10", 3, 450, 0.5),
        ),
        Preset("cifar10-5", "CIFAR-10 in 5 tasks, 300 exemplars per task", published("cifar10", 5, 300, 0.5)),
        Preset("cifar100-5", "CIFAR-100 in 5 tasks, 1000 exemplars per task", published("cifar100", 5, 1000, 0.5)),
        Preset(
            "cifar100-10",
            "CIFAR-100 in 10 tasks, 500 exemplars per task",
            published("cifar100", 10, 500, 0.5),
        ),
        Preset("tiny-5", "TinyImageNet-Subset in 5 tasks, 500 per task", published("tiny-imagenet", 5, 500, 0.5)),
        Preset(
            "tiny-10",
            "TinyImageNet-Subset in 10 tasks, 250 per task",
            published("tiny-imagenet", 10, 250, 0.5),
        ),
    )
}
