"""The toy problem of the contract, with small settings for methods whose server works long."""

from __future__ import annotations

from typing import Any

from fedfeat.config.config import Config, make_config
from fedfeat.data.dataset import Augmentation, Dataset
from fedfeat.methods import all_methods, parts_of
from fedfeat.runs.contract import problem
from fedfeat.runs.contract.problem import NUM_CLASSES, PER_CLASS, TESTED, scenario_from, toy_images, write_toy

__all__ = [
    "NUM_CLASSES",
    "PER_CLASS",
    "SMALL",
    "each_part_once",
    "scenario_from",
    "toy_config",
    "toy_dataset",
    "toy_images",
    "toy_table",
    "untimed",
    "write_toy",
]
TIMING = ("seconds", "images_per_second")
GENERATION = {"batch": 8, "steps": 2, "warmup": 1, "student_steps": 2}
SMALL: dict[str, Any] = {
    "target": {"batch": 8, "generation": {"rounds": 3, **GENERATION}},
    "lander": {"batch": 8, "generation": {"rounds": 2, "adversarial_delay": 1, **GENERATION}},
    "fedfsa": {"server_epochs": 5, "text": {"dim": 24}},
}


def each_part_once() -> list[str]:
    """Return few of the methods that the contract holds, so that every part of those is in one."""
    chosen: set[str] = set()
    covered: set[str] = set()
    for method in sorted(all_methods(), key=lambda method: -len(parts_of(method))):
        if new := {part.name for part in parts_of(method)} - covered:
            chosen.add(method)
            covered |= new
    return [method for method in all_methods() if method in chosen]


def toy_dataset(augmentation: Augmentation | None = None) -> Dataset:
    train, test = toy_images(PER_CLASS, 0), toy_images(TESTED, 1)
    names = tuple(f"square-{c}" for c in range(NUM_CLASSES))
    return Dataset("toy", *train, *test, names, (0.25,), (0.25,), augmentation or Augmentation(1, False, 0.1))


def toy_table(**changes: Any) -> dict[str, Any]:
    merged = {key: {**SMALL[key], **changes.get(key, {})} for key in SMALL}
    return problem.toy_table(**{**changes, **merged})


def toy_config(method: str, **changes: Any) -> Config:
    return make_config(toy_table(method=method, **changes))


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k not in TIMING}
