"""The same classes in several domains: a folder of class folders per domain, and the digits drawn in four ways.

A source numbers pairs, domain by domain: class ``c`` of domain ``d`` is ``d * classes + c``. So reading, caching and
the checks of every other source hold for each class of each domain. ``folded`` then parts the two again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.core.rng import rng_at
from fedfeat.data.dataset import Dataset, Domains, Images, Labels
from fedfeat.data.folder import FolderSource, open_folder
from fedfeat.data.source import Decoded, DigitsSource, keep_classes

NOISE = 64.0  # deviation of the noisy digits, of 255 grey levels


@dataclass(frozen=True)
class DomainFolders(FolderSource):
    """Images in domain folders that hold class folders."""

    domain_names: tuple[str, ...] = ()
    kind: str = "domains"


def open_domains(path: Path) -> DomainFolders | None:
    """Open root/DOMAIN, each as ``data.name = "folder"`` takes it; domains come in the order of their names."""
    if not path.is_dir():
        return None
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    found = [(folder, source) for folder in folders if (source := open_folder(folder)) is not None]
    if not found:
        raise DataError(f"{path}: expected one sub-folder per domain with one folder per class in it, found none")
    classes = found[0][1].class_names
    for folder, source in found:
        if different := sorted({*source.class_names} ^ {*classes}):
            raise DataError(
                f"{path}: every domain needs the same classes, and {different[0]!r} is only in one of "
                f"{found[0][0].name!r} and {folder.name!r}; add its images, or remove it from both"
            )
    train, test = (
        tuple((d * len(classes) + c, file) for d, (_, source) in enumerate(found) for c, file in getattr(source, split))
        for split in ("train", "test")
    )
    names = tuple(folder.name for folder, _ in found)
    pairs = tuple(f"{domain}/{name}" for domain in names for name in classes)
    return DomainFolders(path, train, test, pairs, domain_names=names)


def _noisy(images: Images) -> Images:
    noise = NOISE * rng_at(0, "noisy digits").standard_normal(images.shape)
    return np.clip(images + noise, 0, 255).astype(np.uint8)


WAYS: dict[str, Callable[[Images], Images]] = {
    "plain": lambda images: images,
    "inverted": lambda images: 255 - images,
    "rotated": lambda images: np.rot90(images, axes=(1, 2)),  # by a quarter turn
    "noisy": _noisy,
}


@dataclass(frozen=True)
class DigitDomains:
    """The built-in digits in four domains: of each class, every fourth image is in the same domain, and in no other."""

    kind: str = "digits-domains"
    files: tuple[Path, ...] = ()
    domain_names: tuple[str, ...] = tuple(WAYS)
    class_names: tuple[str, ...] = field(default=tuple(f"{way}/{digit}" for way in WAYS for digit in range(10)))

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Draw each image in the way of its domain."""
        digits = DigitsSource().decode(range(10))
        train = _in_all_ways(digits.train_images, digits.train_labels)
        test = _in_all_ways(digits.test_images, digits.test_labels)
        return keep_classes(self.kind, Decoded(*train, *test), keep, len(self.class_names))


def _in_all_ways(images: Images, labels: Labels) -> tuple[Images, Labels]:
    place = np.zeros(len(labels), dtype=np.int64)  # of an image among those of its class
    for label in range(10):
        place[labels == label] = np.arange(np.count_nonzero(labels == label))
    domains, drawn = place % len(WAYS), np.empty_like(images)
    for domain, way in enumerate(WAYS.values()):
        drawn[domains == domain] = way(images[domains == domain])
    return drawn, domains * 10 + labels


def folded(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return a data set whose labels number pairs as one of classes, with the domain of every image beside it."""
    classes = dataset.num_classes // len(names)
    train, test = dataset.train_labels, dataset.test_labels
    return replace(
        dataset,
        train_labels=train % classes,
        test_labels=test % classes,
        class_names=tuple(pair.partition("/")[2] for pair in dataset.class_names[:classes]),
        domains=Domains(tuple(names), train // classes, test // classes),
    )
