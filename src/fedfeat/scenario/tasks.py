"""Which classes arrive in which task."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedfeat.core.errors import ConfigError
from fedfeat.core.rng import rng_at


def task_sizes(num_classes: int, tasks: int) -> list[int]:
    """Return how many classes each task brings: an even share rounded down, and the rest in the last task."""
    if not 1 <= tasks <= num_classes:
        raise ConfigError(
            f"scenario.tasks is {tasks} but the data set has {num_classes} classes; "
            f"choose between 1 and {num_classes} tasks"
        )
    share = num_classes // tasks
    return [share] * (tasks - 1) + [num_classes - share * (tasks - 1)]


def task_ranges(num_classes: int, tasks: int) -> tuple[range, ...]:
    """Return the internal class ids of each task; they are consecutive in order of arrival."""
    stops = np.cumsum([0, *task_sizes(num_classes, tasks)]).tolist()
    return tuple(range(start, stop) for start, stop in pairwise(stops))


def class_order(num_classes: int, order: str | tuple[int, ...], seed: int) -> tuple[int, ...]:
    """Return the data-set label of each class in order of arrival."""
    if order == "natural":
        return tuple(range(num_classes))
    if order == "seeded":
        return tuple(rng_at(seed, "class order").permutation(num_classes).tolist())
    if order == "legacy":
        return tuple(legacy_generator(seed).permutation(num_classes).tolist())
    if sorted(order) != list(range(num_classes)):
        raise ConfigError(
            f"scenario.class_order must list each of the data set's labels 0 to {num_classes - 1} once, "
            f"got {len(order)} entries that do not"
        )
    return tuple(int(label) for label in order)


def legacy_generator(seed: int) -> np.random.RandomState:
    """Return NumPy's legacy generator, whose stream the published code was run with."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed {seed} does not fit the legacy generator; choose one from 0 to {2**32 - 1}")
    return np.random.RandomState(seed)
