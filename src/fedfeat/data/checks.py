"""What a data set must fulfil; every violation is said in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedfeat.errors import DataError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


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
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise DataError(f"{where}: the class name {twice[0]!r} is used twice; give every class its own name")


def check_statistics(where: str, mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Refuse a mean or deviation that does not fit the channels, or a deviation that cannot be divided by."""
    if len(mean) != channels or len(std) != channels:
        raise DataError(
            f"{where}: images have {channels} channels, mean has {len(mean)} and std {len(std)} values; "
            "give one of each per channel"
        )
    if not all(value > 0 for value in std):
        raise DataError(f"{where}: every std must be above 0, got {tuple(std)}; use 1.0 for a constant channel")
