"""A data set in memory: uint8 images, integer labels, class names, and how its images may be augmented."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedfeat.core.errors import DataError
from fedfeat.data.checks import Images, Labels, check_classes, check_split, check_statistics


@dataclass(frozen=True)
class Augmentation:
    """What training may do to an image: zero-padded random crop, horizontal flip, brightness jitter."""

    crop_padding: int = 0
    flip: bool = False
    brightness: float = 0.0


NO_AUGMENTATION = Augmentation()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images are uint8 [N, H, W, C] (maybe read-only memory maps), labels int64 [N] in 0..num_classes-1."""

    name: str
    train_images: Images = field(repr=False)
    train_labels: Labels = field(repr=False)
    test_images: Images = field(repr=False)
    test_labels: Labels = field(repr=False)
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = NO_AUGMENTATION
    private: bool = False  # one owner's images: there may be none, and nothing of them is told, not even a hash

    def __post_init__(self) -> None:
        self.validate()

    @property
    def num_classes(self) -> int:
        """Number of classes, also of those without a sample."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        height, width, channels = self.train_images.shape[1:]
        return int(height), int(width), int(channels)

    def validate(self) -> None:
        """Raise DataError, in one sentence, for anything a run could not work with."""
        check_classes(self.name, self.class_names)
        for split, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if len(images) or not self.private:
                check_split(f"{self.name}, {split} set", images, labels, self.num_classes)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(
                f"{self.name}: training images are {self.train_images.shape[1:]} and test images "
                f"{self.test_images.shape[1:]} (height, width, channels); resize them to one size"
            )
        check_statistics(self.name, self.mean, self.std, self.image_shape[2])


def relabel(labels: Labels, classes: Sequence[int], total: int) -> tuple[npt.NDArray[np.intp], Labels]:
    """Return the rows whose class is in ``classes``, and their labels by position in ``classes``."""
    new_label = np.full(total, -1, dtype=np.int64)
    new_label[list(classes)] = np.arange(len(classes))
    mapped = new_label[labels]
    rows = np.flatnonzero(mapped >= 0)
    return rows, mapped[rows]


def pick_classes(images: Images, labels: Labels, classes: Sequence[int], total: int) -> tuple[Images, Labels]:
    """Keep the samples of ``classes`` and map their labels to 0, 1, ... in the order given."""
    if list(classes) == list(range(total)):
        return images, labels
    rows, new_labels = relabel(labels, classes, total)
    return images[rows], new_labels


def subset(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Return the data set with these classes only; class ``classes[i]`` becomes class i."""
    total = dataset.num_classes
    wrong = [c for c in classes if not 0 <= c < total]
    if wrong or not classes or len(set(classes)) != len(classes):
        raise DataError(
            f"{dataset.name}: a subset needs distinct classes in 0..{total - 1}, got {list(classes)}; "
            "name each class once"
        )
    train = pick_classes(dataset.train_images, dataset.train_labels, classes, total)
    test = pick_classes(dataset.test_images, dataset.test_labels, classes, total)
    return replace(
        dataset,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
        class_names=tuple(dataset.class_names[c] for c in classes),
    )


def fingerprint(dataset: Dataset) -> str:
    """Return the sha256 of shapes, labels, images and class names; the order of samples counts.

    Of private images only what all owners agree on goes in: their shape and the class names.
    """
    digest = hashlib.sha256()
    for name in dataset.class_names:
        digest.update(name.encode() + b"\0")
    splits = (
        (dataset.train_images, dataset.train_labels),
        (dataset.test_images, dataset.test_labels),
    )
    for images, labels in splits:
        if dataset.private:
            images, labels = images[:0], labels[:0]
        digest.update(repr(tuple(int(n) for n in images.shape)).encode())
        digest.update(labels.astype("<i8").tobytes())
        for start in range(0, len(images), 1024):
            digest.update(np.ascontiguousarray(images[start : start + 1024]).tobytes())
    return digest.hexdigest()
