"""Builds a scenario: from the labels of a data set, or from class names where clients hold images of their own.

Every random draw has its own address. In a federation of owners the server lists which classes arrive when; how many
images there are, and where, is known to their owners only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import ArrayLike

from fedfeat.core.errors import ConfigError, DataError
from fedfeat.core.rng import rng_at
from fedfeat.data.dataset import Dataset
from fedfeat.scenario.partition import Generator, Ids, Split, dirichlet, iid, shards, shuffle_within
from fedfeat.scenario.scenario import Scenario
from fedfeat.scenario.settings import ScenarioSettings

MAX_ATTEMPTS = 1000


def build_scenario(
    train_labels: ArrayLike,
    num_classes: int,
    settings: ScenarioSettings,
    seed: int,
    domains: ArrayLike | None = None,
) -> Scenario:
    """Partition training samples over tasks and clients; ``seed`` counts unless the settings bring their own.

    :param domains: of each sample, for tasks that bring domains.
    """
    run_seed = seed
    seed = seed if settings.seed is None else settings.seed
    labels = np.asarray(train_labels, dtype=np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(f"training labels run from {labels.min()} to {labels.max()}, outside 0 to {num_classes - 1}")
    order = class_order(num_classes, settings.class_order, run_seed if settings.order_seed == "run" else seed)
    internal = np.argsort(order).astype(np.int64)[labels]
    members = _members(internal, num_classes)
    if settings.brings == "domains":
        task_classes = (range(num_classes),) * settings.tasks
        coming = by_domain(members, domains, settings.tasks)
    else:
        task_classes = task_ranges(num_classes, settings.tasks)
        coming = by_class(members, task_classes, settings.blurry, seed)

    def part(task: int) -> Split:
        clients = _reaching(task, settings)
        return _for_all_clients(partition_task(coming[task], len(clients), settings, seed, task), clients, settings)

    splits = _at_their_pace(tuple(map(part, range(settings.tasks))), settings)
    return Scenario(order, task_classes, settings, seed, internal, _present(settings), splits)


def _present(settings: ScenarioSettings) -> tuple[Ids, ...]:
    """Return who takes part in each task, locked: everybody shares it."""
    found = tuple(settings.present(task) for task in range(settings.tasks))
    for clients in found:
        clients.setflags(write=False)
    return found


def scenario_of(dataset: Dataset, settings: ScenarioSettings, seed: int) -> Scenario:
    """Partition the training samples of a data set."""
    domains = None if dataset.domains is None else dataset.domains.train
    return build_scenario(dataset.train_labels, dataset.num_classes, settings, seed, domains)


def by_class(members: list[Ids], task_classes: Sequence[range], blurry: float, seed: int) -> list[list[Ids]]:
    """Return the samples that come in each task, class by class: those of its classes, and late ones of earlier ones.

    ``blurry`` of a class's samples come late, each in a task drawn from those after the class's own.
    """
    last = len(task_classes) - 1
    coming: list[list[Ids]] = [[] for _ in task_classes]
    for own, classes in enumerate(task_classes):
        for c in classes:
            coming[own].append(members[c])
            if not blurry or own == last:
                continue
            rng = rng_at(seed, "blurry", c)
            tasks = np.full(len(members[c]), own)
            late = rng.permutation(len(tasks))[: round(blurry * len(tasks))]
            tasks[late] = rng.integers(own + 1, last + 1, len(late))
            coming[own][-1] = members[c][tasks == own]
            for task in range(own + 1, last + 1):
                coming[task].append(members[c][tasks == task])
    return coming


def by_domain(members: list[Ids], domains: ArrayLike | None, tasks: int) -> list[list[Ids]]:
    """Return the samples of each task, class by class, where task t brings domain t."""
    if domains is None:
        raise ConfigError(
            "scenario.brings: the data set has no domains; take one that has, such as data.name = 'domains' for a "
            "folder per domain, or leave brings = 'domains' out"
        )
    of = np.asarray(domains, dtype=np.int64)
    if (found := int(of.max(initial=-1)) + 1) != tasks:
        raise ConfigError(
            f"scenario.tasks is {tasks} but the data set has {found} domains, and each is a task; set it to {found}"
        )
    return [[samples[of[samples] == task] for samples in members] for task in range(tasks)]


def _reaching(task: int, settings: ScenarioSettings) -> Ids:
    """Return the clients that get to a task's samples at all, each in the task of the federation that its lag says."""
    when = task + settings.lags()
    return np.flatnonzero((settings.first_tasks() <= when) & (when < settings.end_tasks()))


def _at_their_pace(parts: tuple[Split, ...], settings: ScenarioSettings) -> tuple[Split, ...]:
    """Return who holds what in each task of the federation: a client that lags has its part of an earlier one."""
    lags = settings.lags()
    if not lags.any():
        return parts
    nothing = parts[0].indices[:0]
    held = [
        [parts[task - lag][client] if task >= lag else nothing for client, lag in enumerate(lags)]
        for task in range(len(parts))
    ]
    return tuple(_locked(Split.of(np.concatenate(task), np.array([len(part) for part in task]))) for task in held)


def partition_task(classes: list[Ids], clients: int, settings: ScenarioSettings, seed: int, task: int) -> Split:
    """Split one task's samples, redrawing until every client holds at least ``min_samples``."""
    legacy = settings.partition_seed == "legacy"
    rng: Generator = legacy_generator(seed) if legacy else rng_at(seed, "partition", task)
    total = sum(map(len, classes))
    if total >= clients * settings.min_samples:
        for _ in range(MAX_ATTEMPTS):
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
    """Widen a split over some clients to all registered ones, and lock it."""
    sizes = np.zeros(settings.clients, dtype=np.int64)
    sizes[present] = split.sizes
    return _locked(Split.of(split.indices, sizes))


def _locked(split: Split) -> Split:
    """Lock a split: everybody shares it."""
    for array in (split.indices, split.offsets):
        array.setflags(write=False)
    return split


def task_ranges(num_classes: int, tasks: int) -> tuple[range, ...]:
    """Return the internal class ids of each task: an even share rounded down, and the rest in the last task."""
    if not 1 <= tasks <= num_classes:
        raise ConfigError(
            f"scenario.tasks is {tasks} but the data set has {num_classes} classes; "
            f"choose between 1 and {num_classes} tasks"
        )
    share = num_classes // tasks
    return consecutive([*[share] * (tasks - 1), num_classes - share * (tasks - 1)])


def consecutive(sizes: Iterable[int]) -> tuple[range, ...]:
    """Return one range after the other: classes are numbered in order of arrival."""
    return tuple(range(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0)))


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


class OwnSplit(Split):
    """What an owner holds of a task; the same whichever of the federation's clients the owner is."""

    def __getitem__(self, client: int) -> Ids:
        return self.indices

    @property
    def sizes(self) -> Ids:
        """Samples per client, as if each were this one."""
        return np.full(len(self), len(self.indices), dtype=np.int64)


def named_classes(settings: ScenarioSettings) -> tuple[str, ...]:
    """Return all class names in order of arrival."""
    return tuple(name for task in settings.task_names or () for name in task)


def named_scenario(settings: ScenarioSettings, seed: int, own_labels: ArrayLike | None = None) -> Scenario:
    """Return the scenario as the server sees it, without a sample, or as the owner of samples with labels does."""
    assert settings.task_names is not None, "checked with the configuration"
    classes = consecutive(map(len, settings.task_names))
    labels = np.asarray([] if own_labels is None else own_labels, dtype=np.int64)
    return Scenario(
        class_order=tuple(range(classes[-1].stop)),
        task_classes=classes,
        settings=settings,
        seed=seed if settings.seed is None else settings.seed,
        labels=labels,
        present_clients=_present(settings),
        splits=tuple(_split(labels, task, settings.clients, owner=own_labels is not None) for task in classes),
    )


def _split(labels: Ids, classes: range, clients: int, *, owner: bool) -> Split:
    members = np.flatnonzero((labels >= classes.start) & (labels < classes.stop))
    return (OwnSplit if owner else Split)(members, np.zeros(clients + 1, dtype=np.int64))
