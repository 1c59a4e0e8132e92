"""A data set in memory: uint8 images, integer labels, class names, and how its images may be augmented."""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfeat.core.errors import DataError
from fedfeat.core.rng import rng_at

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Augmentation:
    """What training may do to an image: zero-padded random crop, flip, brightness jitter, TrivialAugment, Cutout."""

    crop_padding: int = 0
    flip: bool = False
    brightness: float = 0.0
    trivial: float = 0.0  # greatest strength of its operations
    cutout: float = 0.0  # side of the square, of the image's


NO_AUGMENTATION = Augmentation()


def crop_flip(height: int) -> Augmentation:
    """Return the crop and flip that are usual for images of a height."""
    return Augmentation(crop_padding=4 if height >= 32 else max(1, height // 8), flip=True)


@dataclass(frozen=True, eq=False)
class Domains:
    """Which domain every image belongs to."""

    names: tuple[str, ...]
    train: Labels = field(repr=False)
    test: Labels = field(repr=False)

    def take(self, train: npt.NDArray[np.intp] | slice, test: npt.NDArray[np.intp] | slice) -> Domains:
        """Return the domains of some images."""
        return Domains(self.names, self.train[train], self.test[test])


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
    domains: Domains | None = None  # where the same classes come from several
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
        _check_classes(self.name, self.class_names)
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
        _check_statistics(self.name, self.mean, self.std, self.image_shape[2])


def validation_split(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Return the data set without its test images: a share of every class's training images takes their place."""
    held_out = np.zeros(len(dataset.train_labels), dtype=bool)
    for label, name in enumerate(dataset.class_names):
        members = np.flatnonzero(dataset.train_labels == label)
        count = max(round(share * len(members)), 1)
        if count >= len(members):
            raise DataError(
                f"data.validation: class {name!r} has {len(members)} training images, too few to hold out {share:g} of "
                "them; leave the class out, or lower the share"
            )
        held_out[rng_at(seed, "validation", label).permutation(members)[:count]] = True
    return replace(
        dataset,
        train_images=dataset.train_images[~held_out],
        train_labels=dataset.train_labels[~held_out],
        test_images=dataset.train_images[held_out],
        test_labels=dataset.train_labels[held_out],
    )


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


def _check_classes(where: str, names: Sequence[str]) -> None:
    """Refuse an empty list of class names and names used twice: outside a run the name is the class."""
    if not names:
        raise DataError(f"{where}: there are no classes; at least one class name is needed")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"{where}: the class name {twice[0]!r} is used twice; give every class its own name")


def _check_statistics(where: str, mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Refuse a mean or deviation that does not fit the channels, or a deviation that cannot be divided by."""
    if len(mean) != channels or len(std) != channels:
        raise DataError(
            f"{where}: images have {channels} channels, mean has {len(mean)} and std {len(std)} values; "
            "give one of each per channel"
        )
    if not all(value > 0 for value in std):
        raise DataError(f"{where}: every std must be above 0, got {tuple(std)}; use 1.0 for a constant channel")


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
    train_images, train_labels = pick_classes(dataset.train_images, dataset.train_labels, classes, total)
    test_images, test_labels = pick_classes(dataset.test_images, dataset.test_labels, classes, total)
    return replace(
        dataset,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        class_names=tuple(dataset.class_names[c] for c in classes),
        domains=dataset.domains
        and dataset.domains.take(
            relabel(dataset.train_labels, classes, total)[0], relabel(dataset.test_labels, classes, total)[0]
        ),
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
        for chunk in chunks(images):
            digest.update(np.ascontiguousarray(chunk).data)
    if dataset.domains is not None:
        digest.update(repr(dataset.domains.names).encode())
        digest.update(dataset.domains.train.tobytes() + dataset.domains.test.tobytes())
    return digest.hexdigest()


def chunks(images: np.ndarray[Any, Any], size: int = 1 << 22) -> Iterator[np.ndarray[Any, Any]]:
    """Yield parts of about ``size`` bytes, in order; of a memory map no more than that is held at a time."""
    each = max(size // max(images[:1].nbytes, 1), 1)
    for start in range(0, len(images), each):
        yield images[start : start + each]
        release(images)


def is_mapped(images: np.ndarray[Any, Any]) -> bool:
    """Say whether an array is a whole memory map; chosen rows of one are a copy in memory."""
    return isinstance(images, np.memmap) and isinstance(images.base, mmap.mmap)


def release(images: np.ndarray[Any, Any]) -> None:
    """Let go of the pages of a memory map that were used; the file has them. Anything else stays as it is."""
    if is_mapped(images) and hasattr(mmap, "MADV_DONTNEED"):
        images.base.madvise(mmap.MADV_DONTNEED)  # type: ignore[union-attr]


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Return counts per split and class, the image size and the fingerprint."""
    return {
        "name": dataset.name,
        "classes": dataset.num_classes,
        "image_size": "x".join(str(n) for n in dataset.image_shape),
        "train": _split(dataset.train_labels, dataset.num_classes),
        "test": _split(dataset.test_labels, dataset.num_classes),
        "sha256": fingerprint(dataset),
    }


def _split(labels: Labels, num_classes: int) -> dict[str, int]:
    counts = np.bincount(labels, minlength=num_classes)
    return {"images": len(labels), "per_class_min": int(counts.min()), "per_class_max": int(counts.max())}


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std per channel on the scale 0..1, rounded to 4 decimals.

    A histogram of the 256 values holds all that is needed, so the result does not depend on chunking.
    """
    channels = images.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for chunk in chunks(images):
        for channel in range(channels):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    pixels = np.maximum(counts.sum(axis=1), 1)
    mean = counts @ values / pixels
    variance = counts @ values**2 / pixels - mean**2
    std = np.sqrt(np.maximum(variance, 0)).round(4)
    # A constant channel is only centred: dividing by its zero deviation would give NaN.
    std = np.where(std == 0, 1.0, std)
    return tuple(float(m) for m in mean.round(4)), tuple(float(s) for s in std)
