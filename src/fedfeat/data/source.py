"""What every kind of storage offers: its class names at once, its pixels on demand. The simplest one is built in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images, Labels, check_split, pick_classes

MOST_EMPTY = 10_000  # an owner of few images may hold high classes only, but higher labels than this are ids

ImageFile = tuple[str, Callable[[], bytes]]
"""A name for messages, and a function that reads the encoded bytes."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Pixels and labels of both splits."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


class Stored(Protocol):
    """A data set on disk; opening it is cheap, decoding it is where the work is."""

    @property
    def kind(self) -> str:
        """The storage layout; sources of different kinds never share a cache entry."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files whose change makes the decoded pixels stale."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, by label."""


class ArraySource(Stored, Protocol):
    """A source that is read as whole arrays."""

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Decode the samples of the classes in ``keep``; class ``keep[i]`` becomes label i."""


@dataclass(frozen=True)
class EncodedSplit:
    """The images of a split before decoding: labels at once, files one after another whenever they are asked for."""

    labels: Labels
    files: Callable[[], Iterator[ImageFile]]


@runtime_checkable
class EncodedSource(Stored, Protocol):
    """A source whose images are encoded one by one, as PNG, JPEG and the like."""

    @property
    def where(self) -> str:
        """What messages call it."""

    @property
    def grey(self) -> bool:
        """Whether images that are all grey keep their one channel."""

    def encoded(self, keep: Sequence[int]) -> tuple[EncodedSplit, EncodedSplit]:
        """Return training and test images of the classes in ``keep``; class ``keep[i]`` becomes label i."""


Source = ArraySource | EncodedSource


def keep_classes(where: str, decoded: Decoded, keep: Sequence[int], total: int) -> Decoded:
    """Check fully decoded splits, then drop every class that is not in ``keep``."""
    check_split(f"{where}, training set", decoded.train_images, decoded.train_labels, total)
    check_split(f"{where}, test set", decoded.test_images, decoded.test_labels, total)
    return Decoded(
        *pick_classes(decoded.train_images, decoded.train_labels, keep, total),
        *pick_classes(decoded.test_images, decoded.test_labels, keep, total),
    )


def every_nth_to_test(labels: Labels, n: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark, within each class in the given order, every n-th sample as a test sample; of 2 to n - 1 the last one."""
    test = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        test[rows[n - 1 :: n] if len(rows) >= n else rows[1:][-1:]] = True
    return test


def numbered_names(where: str, labels: Sequence[Labels]) -> tuple[str, ...]:
    """Return "0", "1", ... up to the highest label, and refuse labels that are no class numbers but ids."""
    highest = max((int(split.max(initial=-1)) for split in labels), default=-1)
    if highest >= max(MOST_EMPTY, sum(len(split) for split in labels)):
        raise DataError(
            f"{where}: expected labels that number the classes 0, 1, 2, ..., got {highest}; "
            "relabel the images to 0..C-1 for C classes"
        )
    return tuple(str(label) for label in range(highest + 1))


@dataclass(frozen=True)
class DigitsSource:
    """1,797 handwritten digits of 8x8 pixels, from scikit-learn; of each class, every 4th sample is a test sample."""

    kind: str = "digits"
    files: tuple[Path, ...] = ()
    class_names: tuple[str, ...] = tuple("0123456789")

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Scale the 17 grey levels to 0..255 and split."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.round(bunch.images * 255 / 16).astype(np.uint8)[..., None]
        labels = bunch.target.astype(np.int64)
        test = every_nth_to_test(labels, 4)
        decoded = Decoded(images[~test], labels[~test], images[test], labels[test])
        return keep_classes("digits", decoded, keep, len(self.class_names))
