"""Builds a scenario from the labels of a data set; every draw has its own address."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedfeat.core.errors import ConfigError, DataError
from fedfeat.core.rng import rng_at
from fedfeat.scenario.partition import Generator, Ids, Split, dirichlet, iid, shards, shuffle_within
from fedfeat.scenario.scenario import Scenario
from fedfeat.scenario.settings import ScenarioSettings
from fedfeat.scenario.tasks import class_order, legacy_generator, task_ranges

MAX_DRAWS = 1000


def build_scenario(train_labels: ArrayLike, num_classes: int, settings: ScenarioSettings, seed: int) -> Scenario:
    """Deal a data set's training samples to tasks and clients; ``seed`` counts unless the settings bring their own."""
    seed = seed if settings.seed is None else settings.seed
    labels = np.asarray(train_labels, dtype=np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(f"training labels run from {labels.min()} to {labels.max()}, outside 0 to {num_classes - 1}")
    task_classes = task_ranges(num_classes, settings.tasks)
    order = class_order(num_classes, settings.class_order, seed)
    internal = np.argsort(order).astype(np.int64)[labels]
    first_tasks = settings.first_tasks()
    present = tuple(np.flatnonzero(first_tasks <= task) for task in range(settings.tasks))
    members = _members(internal, num_classes)
    splits = tuple(
        _for_all_clients(
            partition_task([members[c] for c in classes], len(present[task]), settings, seed, task),
            present[task],
            settings,
        )
        for task, classes in enumerate(task_classes)
    )
    return Scenario(order, task_classes, settings, seed, internal, present, splits)


def partition_task(classes: list[Ids], clients: int, settings: ScenarioSettings, seed: int, task: int) -> Split:
    """Split one task's samples, redrawing until every client holds at least ``min_samples``."""
    legacy = settings.partition_seed == "legacy"
    rng: Generator = legacy_generator(seed) if legacy else rng_at(seed, "partition", task)
    total = sum(map(len, classes))
    if total >= clients * settings.min_samples:
        for _ in range(MAX_DRAWS):
            split = _draw(classes, clients, rng, settings)
            if split.sizes.min() >= settings.min_samples:
                return shuffle_within(split, rng)
    raise ConfigError(
        f"no {settings.partition!r} partition of task {task + 1} ({total} samples, {clients} clients) gives "
        f"every client at least {settings.min_samples} samples; lower scenario.min_samples (0 allows empty "
        f"clients) or scenario.clients, or raise scenario.beta"
    )


def _draw(classes: list[Ids], clients: int, rng: Generator, settings: ScenarioSettings) -> Split:
    match settings.partition:
        case "iid":
            return iid(classes, clients, rng)
        case "shards":
            return shards(classes, clients, rng, settings.shards_per_client)
        case kind:
            return dirichlet(classes, clients, rng, settings.beta, capped=kind == "dirichlet")


def _members(labels: Ids, num_classes: int) -> list[Ids]:
    """Return the sample indices of each class, in the data set's order."""
    by_class = np.argsort(labels, kind="stable")
    return np.split(by_class, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])


def _for_all_clients(split: Split, present: Ids, settings: ScenarioSettings) -> Split:
    """Widen a split over the present clients to all registered ones, and lock it: everybody shares it."""
    sizes = np.zeros(settings.clients, dtype=np.int64)
    sizes[present] = split.sizes
    widened = Split.of(split.indices, sizes)
    for array in (widened.indices, widened.offsets, present):
        array.setflags(write=False)
    return widened
