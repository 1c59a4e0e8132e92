"""Samples set aside for one task: not trained on, so they can judge what the model does to unseen images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Shuffle = Callable[[np.ndarray], np.ndarray]

LEAST = 5  # a class is asked for a sample only where a client has this many


def hold_out(
    old_labels: np.ndarray, new_labels: np.ndarray, share: float, shuffle_old: Shuffle, shuffle_new: Shuffle
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions to set aside among exemplars and among current samples: the first of each class, shuffled.

    Of each old class up to ``share`` of its exemplars (at least one where there are five or more); of each new class
    about as many as are set aside per old class, so that both sides are judged on comparable numbers.
    """
    old = [_pick(np.flatnonzero(old_labels == c), share, shuffle_old) for c in np.unique(old_labels)]
    per_class = max((len(p) for p in old), default=1) or 1
    new = [_some(np.flatnonzero(new_labels == c), per_class, shuffle_new) for c in np.unique(new_labels)]
    return _joined(old), _joined(new)


def by_place(indices: np.ndarray, place: np.ndarray) -> Shuffle:
    """Return a shuffle that is the same for good: positions in the order of the places that their samples have."""
    return lambda members: members[np.argsort(place[indices[members]], kind="stable")]


def _pick(members: np.ndarray, share: float, shuffle: Shuffle) -> np.ndarray:
    count = max(int(len(members) * share), 1) if len(members) >= LEAST else 0
    return shuffle(members)[:count]


def _some(members: np.ndarray, count: int, shuffle: Shuffle) -> np.ndarray:
    return shuffle(members)[: min(count, len(members) // LEAST)]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
