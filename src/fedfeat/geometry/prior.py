"""Energy priors: what head energy looks like on exemplars of old classes, averaged over batches and clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

EmaConvention = Literal["eq9", "decay"]
EmaInit = Literal["first", "zero"]


def ema(values: Iterable[float], rho: float, *, convention: EmaConvention = "eq9", init: EmaInit = "first") -> float:
    """Return the moving average of batch means.

    ``eq9`` puts ``rho`` on the new value, as the published equation does; ``decay`` puts it on the old one.
    """
    new = rho if convention == "eq9" else 1.0 - rho
    average: float | None = 0.0 if init == "zero" else None
    for value in values:
        average = value if average is None else (1.0 - new) * average + new * value
    return 0.0 if average is None else average


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return the mean of clients' priors by their number of old samples, or None when nobody has any."""
    total = sum(weights)
    if total <= 0:
        return None
    return sum(v * w for v, w in zip(values, weights, strict=True) if w > 0) / total
