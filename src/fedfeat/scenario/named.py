"""Tasks as class names: the scenario of a federation whose clients hold images of their own.

The server lists which classes arrive when. How many images there are, and where, is known to their owners only.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import ArrayLike

from fedfeat.scenario.partition import Ids, Split
from fedfeat.scenario.scenario import Scenario
from fedfeat.scenario.settings import ScenarioSettings


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
    classes = tuple(range(a, b) for a, b in pairwise(accumulate(map(len, settings.task_names), initial=0)))
    labels = np.asarray([] if own_labels is None else own_labels, dtype=np.int64)
    first_tasks = settings.first_tasks()
    return Scenario(
        class_order=tuple(range(classes[-1].stop)),
        task_classes=classes,
        settings=settings,
        seed=seed if settings.seed is None else settings.seed,
        labels=labels,
        present_clients=tuple(np.flatnonzero(first_tasks <= task) for task in range(len(classes))),
        splits=tuple(_split(labels, task, settings.clients, owner=own_labels is not None) for task in classes),
    )


def _split(labels: Ids, classes: range, clients: int, *, owner: bool) -> Split:
    members = np.flatnonzero((labels >= classes.start) & (labels < classes.stop))
    return (OwnSplit if owner else Split)(members, np.zeros(clients + 1, dtype=np.int64))
