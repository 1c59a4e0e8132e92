"""The scenario: who sees what, and when.

Inside a run a class is a number in order of arrival (its internal id) and tasks count from 0; ``class_order``
leads back to the data set's labels, and whatever people read counts tasks from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedfeat.core.rng import rng_at
from fedfeat.scenario.partition import Ids, Split, even_sizes
from fedfeat.scenario.settings import ScenarioSettings

MAX_LISTED_CLIENTS = 200  # in scenario.json; of more only a summary is written


@dataclass(frozen=True, eq=False)
class Scenario:
    """Tasks, clients and samples of one experiment; made by ``build_scenario`` and never changed."""

    class_order: tuple[int, ...]  # data-set label of each internal class
    task_classes: tuple[range, ...]  # internal ids of each task
    settings: ScenarioSettings
    seed: int
    labels: Ids  # internal label of each training sample
    present_clients: tuple[Ids, ...]  # per task, increasing ids
    splits: tuple[Split, ...]  # per task, over all registered clients

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_classes)

    @property
    def num_classes(self) -> int:
        """Number of classes over all tasks."""
        return len(self.class_order)

    @property
    def num_clients(self) -> int:
        """Number of registered clients, present or not yet."""
        return self.settings.clients

    @property
    def test_rows(self) -> tuple[range, ...]:
        """Rows of each task in a confusion table: those of its classes, or those of all classes in its domain."""
        if self.settings.brings == "classes":
            return self.task_classes
        return tuple(range(t * self.num_classes, (t + 1) * self.num_classes) for t in range(self.num_tasks))

    def seen_classes(self, task: int) -> int:
        """Number of classes seen once this task has begun."""
        return self.task_classes[task].stop

    def old_classes(self, task: int) -> int:
        """Number of classes seen before this task."""
        return self.task_classes[task].start

    @cached_property
    def lags(self) -> Ids:
        """How many tasks each registered client is behind."""
        return self.settings.lags()

    def own_old_classes(self, task: int, client: int) -> int:
        """Number of classes that came before those which this client has in this task."""
        return self.task_classes[task - int(self.lags[client])].start

    def present(self, task: int) -> Ids:
        """Ids of the clients that take part in this task: they have joined, and have not left."""
        return self.present_clients[task]

    def gone(self, task: int) -> Ids:
        """Ids of the clients that have left by this task."""
        return np.flatnonzero(self.settings.end_tasks() <= task)

    def held_classes(self, task: int) -> list[int]:
        """Classes of this task, then others of which images come in it: late ones, or those of clients that lag."""
        own = self.task_classes[task]
        others = np.unique(self.labels[self.splits[task].indices])
        return [*own, *(int(c) for c in others if c not in own)]

    def samples(self, task: int, client: int) -> Ids:
        """Indices of the training samples this client gets in this task, in the partition's random order."""
        return self.splits[task][client]

    def participants_per_round(self, task: int) -> int:
        """Number of clients that take part in each round of this task."""
        share, here = self.settings.participation, len(self.present_clients[task])
        return min(share, here) if isinstance(share, int) else max(1, int(share * here + 0.5))

    def participants(self, task: int, round: int) -> Ids:
        """Increasing ids of the clients that take part in this round (counted from 0 in each task)."""
        here, wanted = self.present_clients[task], self.participants_per_round(task)
        if wanted == len(here):
            return here
        rng = rng_at(self.seed, "participation", task, round)
        return here[np.sort(rng.choice(len(here), wanted, replace=False, shuffle=False))]

    def asked_at_end(self, task: int, rounds: int) -> Ids:
        """Increasing ids of the clients that are asked at the end of a task that has so many rounds."""
        if self.settings.asked_at_end == "present" or rounds == 0:
            return self.present_clients[task]
        return np.unique(np.concatenate([self.participants(task, round) for round in range(rounds)]))

    def counts(self, task: int) -> Ids:
        """Samples of this task per client (rows) and internal class (columns, all classes)."""
        split = self.splits[task]
        owners = np.repeat(np.arange(self.num_clients), split.sizes)
        cells = np.bincount(
            owners * self.num_classes + self.labels[split.indices],
            minlength=self.num_clients * self.num_classes,
        )
        return cells.reshape(self.num_clients, self.num_classes)

    def internal_labels(self, labels: ArrayLike) -> Ids:
        """Map data-set labels to internal ids."""
        arrival = np.argsort(self.class_order).astype(np.int64)
        return arrival[np.asarray(labels, dtype=np.int64)]

    def quotas(self, task: int, asked: Ids | None = None) -> Ids:
        """Exemplars each registered client may keep from this task; 0 for those not asked, by default not present."""
        here, budget = self.present_clients[task] if asked is None else asked, self.settings.budget
        shared = self.settings.budget_scope == "global_per_task"
        quotas = np.zeros(self.num_clients, dtype=np.int64)
        quotas[here] = even_sizes(budget, len(here)) if shared else budget
        return quotas

    def to_json(self, class_names: Sequence[str] | None = None, domain_names: Sequence[str] = ()) -> dict[str, Any]:
        """Return what ``scenario.json`` holds: class order and, per task, who holds how much of what."""
        names = names_in_order(self, class_names)
        domains = [{"domain": name} for name in task_domains(self, domain_names)] or [{}] * self.num_tasks
        return {
            "seed": self.seed,
            "settings": self.settings.model_dump(mode="json"),
            "num_clients": self.num_clients,
            "class_order": [{"id": i, "label": label, "name": names[i]} for i, label in enumerate(self.class_order)],
            "tasks": [_task_record(self, task, names) | domains[task] for task in range(self.num_tasks)],
        }


def names_in_order(scenario: Scenario, class_names: Sequence[str] | None) -> list[str]:
    """Return the name of each internal class; without names, its data-set label."""
    return [str(label) if class_names is None else str(class_names[label]) for label in scenario.class_order]


def task_domains(scenario: Scenario, domain_names: Sequence[str]) -> list[str]:
    """Return the name of each task's domain; nothing where tasks bring classes."""
    return list(domain_names) if scenario.settings.brings == "domains" else []


def spread(values: Ids) -> dict[str, float]:
    """Return the smallest, middle and largest of some numbers."""
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _task_record(scenario: Scenario, task: int, names: list[str]) -> dict[str, Any]:
    classes, here = scenario.held_classes(task), scenario.present(task)
    counts = scenario.counts(task)[here][:, classes]
    record: dict[str, Any] = {
        "task": task + 1,
        "classes": [names[c] for c in classes],
        "present": len(here),
        "participants_per_round": scenario.participants_per_round(task),
        "exemplars_per_client": spread(scenario.quotas(task)[here]),
    }
    if len(classes) > (new := len(scenario.task_classes[task])):
        record["new"] = new  # the first of its classes; of the others only some images come
    if scenario.settings.task_names is not None:
        return record  # only the owners of the images know how many there are
    record |= {
        "samples": int(counts.sum()),
        "samples_per_class": counts.sum(axis=0).tolist(),
        "samples_per_client": spread(counts.sum(axis=1)),
        "classes_per_client": spread((counts > 0).sum(axis=1)),
    }
    if scenario.num_clients <= MAX_LISTED_CLIENTS:
        rows = counts.tolist()
        record["clients"] = [{"client": int(k), "counts": row} for k, row in zip(here, rows, strict=True)]
    return record
