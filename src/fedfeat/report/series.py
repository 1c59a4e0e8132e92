"""Numbers behind figures and page: means and deviations over seeds; short, finite, and few enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np

from fedfeat.federation.metrics import Matrix
from fedfeat.report.collect import Group
from fedfeat.report.run import Run

Curve = tuple[np.ndarray, np.ndarray]
MOST_POINTS = 240


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


def loss_names(runs: Sequence[Run]) -> list[str]:
    """Return every loss that some round reports."""
    return sorted({name for run in runs for r in run.rounds for name in r.losses})


def percents(values: Iterable[float | None]) -> list[float | None]:
    """Return numbers with two decimals; what is not finite is None."""
    return [None if v is None or not isfinite(v) else round(float(v), 2) for v in values]


def significant(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Return numbers with a few significant digits; what is not finite is None."""
    return [float(f"{v:.{digits}g}") if isfinite(v) else None for v in values]


def thinned(values: Sequence[float] | np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Return means of consecutive, nearly equal blocks, at most so many; NaN is left out of a mean."""
    blocks = np.array_split(np.asarray(values, dtype=float), min(most, len(values)) or 1)
    return np.array([mean_of(block) for block in blocks if len(block)])


def mean_of(values: np.ndarray) -> float:
    """Return the mean of what is a number, NaN of nothing; an infinity stays one."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else float("nan")


def ragged_mean(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the mean down the rows at every position that some row reaches."""
    length = max(map(len, rows), default=0)
    table = np.full((len(rows), length), np.nan)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return np.array([mean_of(column) for column in table.T])
