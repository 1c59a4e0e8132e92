"""Numbers behind the figures: means and deviations over a group's seeds, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedfeat.evaluate.metrics import Matrix
from fedfeat.report.collect import Group
from fedfeat.report.records import TaskRecord

Curve = tuple[np.ndarray, np.ndarray]


def mean_and_std(rows: Sequence[Sequence[float]]) -> Curve:
    """Return mean and sample deviation down the rows, as far as all reach; one row deviates by zero."""
    rows = [row for row in rows if len(row)]  # a run that lost its events says nothing
    length = min(map(len, rows), default=0)
    table = np.array([list(row)[:length] for row in rows], dtype=float).reshape(len(rows), length)
    if len(rows) < 2:
        return table.sum(axis=0), np.zeros(length)
    return table.mean(axis=0), table.std(axis=0, ddof=1)


def accuracy_curve(group: Group, corrected: bool) -> Curve:
    """Return the accuracy after each task."""
    return mean_and_std([run.accuracies(corrected) for run in group.shown])


def mean_matrix(group: Group, corrected: bool = True) -> np.ndarray:
    """Return the accuracy matrix averaged over seeds; above the diagonal is NaN."""
    matrices = [run.matrix(corrected) for run in group.shown]
    size = min(map(len, matrices), default=0)
    mean = np.full((size, size), np.nan)
    for i in range(size):
        mean[i, : i + 1] = np.mean([m[i] for m in matrices], axis=0)
    return mean


def forgetting_by_task(matrix: Matrix) -> list[float]:
    """Return how far each old task ended below its best before the last task."""
    last = len(matrix) - 1
    return [max(matrix[i][j] for i in range(j, last)) - matrix[last][j] for j in range(last)]


def forgetting_curve(group: Group) -> Curve:
    """Return the forgetting of each old task."""
    return mean_and_std([forgetting_by_task(run.matrix()) for run in group.shown])


def head_tail_curve(group: Group, which: int, corrected: bool) -> np.ndarray:
    """Return accuracy on the newest classes (``which`` 0) or all earlier ones (1) from the second task on."""

    def value(task: TaskRecord) -> float:
        found = (task.head_tail if corrected else task.head_tail_uncorrected)[which]
        return np.nan if found is None else found

    return mean_and_std([[value(t) for t in run.tasks[1:]] for run in group.shown])[0]


def loss_names(groups: Sequence[Group]) -> list[str]:
    """Return every loss that some round reports."""
    return sorted({name for group in groups for run in group.shown for r in run.rounds for name in r.losses})


def loss_curve(group: Group, name: str) -> np.ndarray:
    """Return a loss over all rounds of all tasks; NaN where it is not reported."""
    return mean_and_std([[r.losses.get(name, np.nan) for r in run.rounds] for run in group.shown])[0]


def speed_curve(group: Group) -> np.ndarray:
    """Return training images per second over all rounds."""
    return mean_and_std([[r.images_per_second for r in run.rounds] for run in group.shown])[0]


def task_starts(groups: Sequence[Group]) -> list[int]:
    """Return the rounds, counted from 0 through the run, at which tasks begin."""
    runs = [run for group in groups for run in group.shown]
    longest = max(runs, key=lambda run: len(run.rounds), default=None)
    tasks = [r.task for r in longest.rounds] if longest else []
    return [i for i, task in enumerate(tasks) if i == 0 or task != tasks[i - 1]]
