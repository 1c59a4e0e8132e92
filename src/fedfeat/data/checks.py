"""What a data set must fulfil; every violation is said in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedfeat.core.errors import DataError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

MOST_EMPTY = 10_000  # an owner of few images may hold high classes only, but higher labels than this are ids


def check_images(where: str, images: Images) -> None:
    """Refuse anything but a non-empty uint8 array [N, H, W, C]."""
    if images.dtype == object:
        raise DataError(f"{where}: images differ in size; resize them to one height and width")
    if images.dtype != np.uint8:
        raise DataError(f"{where}: images must be uint8 (0..255), got {images.dtype}; convert them first")
    if images.ndim != 4:
        raise DataError(f"{where}: images must have 4 axes [N, H, W, C], got shape {images.shape}; reshape them")
    if len(images) == 0:
        raise DataError(f"{where}: there are no images; at least one is needed")
    if 0 in images.shape:
        raise DataError(f"{where}: images of shape {images.shape[1:]} hold no pixel; check how they were saved")


def check_labels(where: str, labels: Labels, num_classes: int) -> None:
    """Refuse labels that are not int64 or lie outside 0..num_classes-1, naming the first such label."""
    if labels.dtype != np.int64 or labels.ndim != 1:
        raise DataError(
            f"{where}: labels must be one axis of int64, got {labels.dtype} of shape {labels.shape}; "
            "convert them with .astype('int64')"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(outside):
        index = int(outside[0])
        raise DataError(
            f"{where}: the label at index {index} is {labels[index]}, outside 0..{num_classes - 1}; "
            "relabel the samples or name every class"
        )


def check_split(where: str, images: Images, labels: Labels, num_classes: int) -> None:
    """Check the images and labels of one split, and that there is one label per image."""
    check_images(where, images)
    check_labels(where, labels, num_classes)
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels; each image needs one label")


def check_classes(where: str, names: Sequence[str]) -> None:
    """Refuse an empty list of class names and names used twice: outside a run the name is the class."""
    if not names:
        raise DataError(f"{where}: there are no classes; at least one class name is needed")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"{where}: the class name {twice[0]!r} is used twice; give every class its own name")


def check_filled(where: str, names: Sequence[str], train: Labels, test: Labels) -> None:
    """Refuse a class without training or without test images, naming the first such class."""
    counts = np.stack([np.bincount(labels, minlength=len(names)) for labels in (train, test)])
    lacking = np.flatnonzero((counts == 0).any(axis=0))
    if len(lacking) == 0:
        return
    trained, tested = (int(n) for n in counts[:, lacking[0]])
    if trained + tested == 0:
        present = int(counts.any(axis=0).sum())
        remedy = f"relabel the images to 0..{max(present - 1, 0)} without gaps and name only these classes"
    else:
        kind = "more" if trained + tested == 1 else "test" if trained else "training"
        remedy = f"add {kind} images of it or leave it out"
    others = f" ({len(lacking) - 1} more such)" if len(lacking) > 1 else ""
    raise DataError(
        f"{where}: every class needs training and test images, but class {names[lacking[0]]!r}{others} has {trained} "
        f"training and {tested} test images; {remedy}"
    )


def numbered_names(where: str, labels: Sequence[Labels]) -> tuple[str, ...]:
    """Return "0", "1", ... up to the highest label, and refuse labels that are no class numbers but ids."""
    highest = max((int(part.max(initial=-1)) for part in labels), default=-1)
    if highest >= max(MOST_EMPTY, sum(len(part) for part in labels)):
        raise DataError(
            f"{where}: expected labels that number the classes 0, 1, 2, ..., got {highest}; "
            "relabel the images to 0..C-1 for C classes"
        )
    return tuple(str(label) for label in range(highest + 1))


def check_statistics(where: str, mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Refuse a mean or deviation that does not fit the channels, or a deviation that cannot be divided by."""
    if len(mean) != channels or len(std) != channels:
        raise DataError(
            f"{where}: images have {channels} channels, mean has {len(mean)} and std {len(std)} values; "
            "give one of each per channel"
        )
    if not all(value > 0 for value in std):
        raise DataError(f"{where}: every std must be above 0, got {tuple(std)}; use 1.0 for a constant channel")
