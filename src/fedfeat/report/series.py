"""Numbers behind the figures: means and deviations over seeds, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedfeat.federation.metrics import Matrix
from fedfeat.report.collect import Group
from fedfeat.report.run import Run

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


def mean_matrix(matrices: Sequence[Matrix]) -> np.ndarray:
    """Return accuracy matrices averaged over seeds, as far as all reach; above the diagonal is NaN."""
    matrices = [matrix for matrix in matrices if matrix]
    size = min(map(len, matrices), default=0)
    mean = np.full((size, size), np.nan)
    for i in range(size):
        mean[i, : i + 1] = np.mean([m[i] for m in matrices], axis=0)
    return mean


def forgetting_by_task(matrix: Matrix) -> list[float]:
    """Return how far each old task ended below its best before the last task."""
    last = len(matrix) - 1
    return [max(matrix[i][j] for i in range(j, last)) - matrix[last][j] for j in range(last)]


def loss_names(runs: Sequence[Run]) -> list[str]:
    """Return every loss that some round reports."""
    return sorted({name for run in runs for r in run.rounds for name in r.losses})
