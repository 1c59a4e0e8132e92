"""Samples set aside for one task: not trained on, so they can judge what the model does to unseen images."""

from __future__ import annotations

import numpy as np

LEAST = 5  # a class is asked for a sample only where a client has this many


def hold_out(
    old_labels: np.ndarray, new_labels: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions to set aside among exemplars and among current samples.

    Of each old class up to ``share`` of its exemplars (at least one where there are five or more); of each new class
    about as many as are set aside per old class, so that both sides are judged on comparable numbers.
    """
    old = [_pick(np.flatnonzero(old_labels == c), share, rng) for c in np.unique(old_labels)]
    per_class = max((len(p) for p in old), default=1) or 1
    new = [_some(np.flatnonzero(new_labels == c), per_class, rng) for c in np.unique(new_labels)]
    return _joined(old), _joined(new)


def _pick(members: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    count = max(int(len(members) * share), 1) if len(members) >= LEAST else 0
    return rng.permutation(members)[:count]


def _some(members: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(members)[: min(count, len(members) // LEAST)]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
