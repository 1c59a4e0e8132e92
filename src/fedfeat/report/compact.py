"""Numbers on their way into the page: short, finite, and few enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np

MOST_POINTS = 240


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
