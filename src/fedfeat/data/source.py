"""What every kind of storage offers: its class names at once, its pixels on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedfeat.data.checks import Images, Labels, check_split
from fedfeat.data.dataset import pick_classes


@dataclass(frozen=True, eq=False)
class Decoded:
    """Pixels and labels of both splits."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


class Source(Protocol):
    """A data set on disk; opening it is cheap, ``decode`` is where the work is."""

    @property
    def kind(self) -> str:
        """The storage layout; sources of different kinds never share a cache entry."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files whose change makes the decoded pixels stale."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, by label."""

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Decode the samples of the classes in ``keep``; class ``keep[i]`` becomes label i."""


def keep_classes(where: str, decoded: Decoded, keep: Sequence[int], total: int) -> Decoded:
    """Check fully decoded splits, then drop every class that is not in ``keep``."""
    check_split(f"{where}, training set", decoded.train_images, decoded.train_labels, total)
    check_split(f"{where}, test set", decoded.test_images, decoded.test_labels, total)
    train = pick_classes(decoded.train_images, decoded.train_labels, keep, total)
    test = pick_classes(decoded.test_images, decoded.test_labels, keep, total)
    return Decoded(train[0], train[1], test[0], test[1])


def every_nth_to_test(labels: Labels, n: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark, within each class in the given order, every n-th sample as a test sample; of 2 to n - 1 the last one."""
    test = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        test[rows[n - 1 :: n] if len(rows) >= n else rows[1:][-1:]] = True
    return test
