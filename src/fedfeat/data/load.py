"""The data sets that can be named, and how one is loaded: find it, choose its classes, decode it once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedfeat.core.errors import DataError, nearest
from fedfeat.data.cache import decode_cached, need_memory
from fedfeat.data.cifar import CIFAR10, CIFAR100, open_cifar
from fedfeat.data.cifar import Layout as CifarLayout
from fedfeat.data.dataset import NO_AUGMENTATION, Augmentation, Dataset, Labels, crop_flip, validation_split
from fedfeat.data.domains import DigitDomains, folded, open_domains
from fedfeat.data.folder import open_folder
from fedfeat.data.idx import EMNIST, FASHION_MNIST, MNIST, open_idx
from fedfeat.data.idx import Layout as IdxLayout
from fedfeat.data.npz import open_npz
from fedfeat.data.parquet import open_parquet
from fedfeat.data.resize import Fit
from fedfeat.data.settings import OWNED, DataSettings, search_places
from fedfeat.data.source import DigitsSource, Source
from fedfeat.data.svhn import open_svhn
from fedfeat.data.tiny_imagenet import SUBSET, TinySource, open_tiny_imagenet

Opener = Callable[[Path], Source | None]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]

WNID = re.compile(r"n\d{8}")
CIFAR_AUGMENTATION = Augmentation(crop_padding=4, flip=True, brightness=63 / 255)


@dataclass(frozen=True)
class DatasetInfo:
    """How a data set is opened and what is fixed about it; None is read from the data."""

    name: str
    description: str
    needs: Literal["nothing", "download", "path"]
    openers: tuple[Opener, ...] = ()
    classes: int | None = None
    shape: tuple[int, int, int] | None = None
    subset: tuple[str, ...] = ()  # ids of the classes that are taken of a copy with more
    statistics: Statistics | None = None
    augmentation: Augmentation = NO_AUGMENTATION

    @property
    def image_size(self) -> str:
        """Height, width and channels in words."""
        return "any" if self.shape is None else "x".join(map(str, self.shape))


def _official(
    opener: Callable[..., Source | None],
    layout: CifarLayout | IdxLayout,
    description: str,
    shape: tuple[int, int, int],
    **known: Any,
) -> DatasetInfo:
    """Return a set that is kept as parquet shards, or in the layout of its authors."""
    openers = partial(open_parquet, default_names=layout.class_names), partial(opener, layout)
    return DatasetInfo(layout.name, description, "download", openers, len(layout.class_names), shape, **known)


_DATASETS = (
    DatasetInfo(
        "digits",
        "handwritten digits, built in",
        "nothing",
        classes=10,
        shape=(8, 8, 1),
        statistics=((0.3049,), (0.3756,)),
    ),
    _official(open_idx, MNIST, "MNIST, handwritten digits", (28, 28, 1)),
    _official(open_idx, FASHION_MNIST, "Fashion-MNIST, pictures of clothes", (28, 28, 1)),
    *(
        DatasetInfo(
            layout.name,
            f"EMNIST, handwritten characters, split {layout.name.removeprefix('emnist-')}",
            "download",
            openers=(partial(open_idx, layout),),
            classes=len(layout.class_names),
            shape=(28, 28, 1),
        )
        for layout in EMNIST
    ),
    DatasetInfo(
        "svhn",
        "SVHN, cropped house numbers",
        "download",
        openers=(partial(open_parquet, default_names=tuple("0123456789")), open_svhn),
        classes=10,
        shape=(32, 32, 3),
    ),
    _official(
        open_cifar,
        CIFAR10,
        "CIFAR-10, photographs of 10 kinds of things",
        (32, 32, 3),
        statistics=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        augmentation=CIFAR_AUGMENTATION,
    ),
    _official(
        open_cifar,
        CIFAR100,
        "CIFAR-100 with its fine labels",
        (32, 32, 3),
        statistics=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        augmentation=CIFAR_AUGMENTATION,
    ),
    DatasetInfo(
        "tiny-imagenet",
        "TinyImageNet, by default the same 50 of its classes",
        "download",
        openers=(open_parquet, open_tiny_imagenet),
        classes=200,
        shape=(64, 64, 3),
        subset=SUBSET,
        statistics=((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
        augmentation=Augmentation(crop_padding=4, flip=True),
    ),
    DatasetInfo(
        "digits-domains", "the digits plain, inverted, rotated and noisy, built in", "nothing", shape=(8, 8, 1)
    ),
    DatasetInfo("parquet", "your own parquet shards in the Hugging Face layout", "path", (open_parquet,)),
    DatasetInfo("npz", "your own arrays in one .npz file", "path", (open_npz,)),
    DatasetInfo("folder", "your own images, one folder per class", "path", (open_folder,)),
    DatasetInfo("domains", "your own images, one folder per domain with one per class in it", "path", (open_domains,)),
)
BUILT_IN: dict[str, Callable[[], Source]] = {"digits": DigitsSource, "digits-domains": DigitDomains}
DATASETS = {info.name: info for info in _DATASETS}


def list_datasets() -> tuple[DatasetInfo, ...]:
    """Return what is known of every data set that can be named."""
    return _DATASETS


def find_dataset(name: str) -> DatasetInfo:
    """Return what is known of a data set, or say which name is near."""
    if name not in DATASETS:
        raise DataError(f"data.name: there is no data set {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]


def load_dataset(settings: DataSettings, *, seed: int = 0, write_cache: bool = True) -> Dataset:
    """Load a data set; ``seed`` decides what ``subset_classes`` keeps and what ``validation`` holds out.

    :param write_cache: keep decoded images for the next time; without it nothing is written.
    """
    if settings.name == OWNED:
        raise DataError(
            "data.name: with 'owned' every client brings its own images; run this with 'fedfeat server' and "
            "'fedfeat client --data', or on one machine with 'fedfeat federate'"
        )
    info = find_dataset(settings.name)
    source = open_source(info, settings.location())
    names, domains = source.class_names, getattr(source, "domain_names", ())
    if domains and settings.subset_classes is not None:
        raise DataError("data.subset_classes: there is no subset of a data set with domains; leave it out")
    if settings.subset_classes is None and 0 < len(info.subset) < len(names):
        keep = listed_classes(source, info)
    else:
        keep = choose_classes(names, settings.subset_classes, seed)
    entry = decode_cached(source, keep, Fit(settings.image_size, settings.resize), write=write_cache)
    decoded, (mean, std) = entry.decoded, info.statistics or (entry.mean, entry.std)
    _check_known(info, len(names), decoded.train_images.shape[1:], settings.image_size)
    kept = tuple(names[c] for c in keep)
    if info.needs == "path":
        _check_filled(str(settings.location()), kept, decoded.train_labels, decoded.test_labels)
    augmentations = {"none": NO_AUGMENTATION, "crop-flip": crop_flip(decoded.train_images.shape[1])}
    augmentation = augmentations.get(settings.augment, info.augmentation)
    dataset = Dataset(
        name=settings.name,
        **vars(decoded),
        class_names=kept,
        mean=mean,
        std=std,
        augmentation=replace(augmentation, trivial=settings.trivial, cutout=settings.cutout),
    )
    if settings.validation is not None:
        shape = dataset.train_images.shape
        need_memory(
            "data.validation holds the training images in memory", shape, "move them to the test images yourself"
        )
        dataset = validation_split(dataset, settings.validation, seed)
    return folded(dataset, domains) if domains else dataset


def open_source(info: DatasetInfo, path: Path | None) -> Source:
    """Open the storage of a data set at ``path``, or at the first searched place that holds it."""
    if info.needs == "nothing":
        if path is not None:
            raise DataError(f"data.path: {info.name} is built in and takes no path, got {path}; remove data.path")
        return BUILT_IN[info.name]()
    if path is None and info.needs == "path":
        raise DataError(f"data.path: {info.name} needs the place of your data; set data.path, or give --path")
    if path is None:
        source = find_source(info)
        places = " and ".join(str(place) for place in search_places(info.name))
        absent = f"{info.name} was not found in {places}; run: fedfeat data get {info.name}, or set data.path"
    else:
        if not path.exists():
            raise DataError(f"data.path: {path} does not exist; give the folder, archive or file of {info.name}")
        source = _open_at(info, path)
        absent = f"data.path: {path} holds nothing in a layout of {info.name}; see: fedfeat data list"
    if source is None:
        raise DataError(absent)
    return source


def find_source(info: DatasetInfo) -> Source | None:
    """Return the data set from the first searched place that holds it, or None."""
    found = (_open_at(info, place) for place in search_places(info.name) if place.is_dir())
    return next((source for source in found if source is not None), None)


def _open_at(info: DatasetInfo, path: Path) -> Source | None:
    opened = (opener(path) for opener in info.openers)
    return next((source for source in opened if source is not None), None)


def listed_classes(source: Source, info: DatasetInfo) -> list[int]:
    """Return the classes of the data set's subset, the same for every copy and seed."""
    ids = source.wnids if isinstance(source, TinySource) else source.class_names
    missing = [wnid for wnid in info.subset if wnid not in ids]
    if missing:
        raise DataError(
            f"{info.name}: expected {len(info.subset)} classes by their WordNet ids among {len(ids)}, and {missing[0]} "
            f"({len(missing)} in all) is not there; data.subset_classes = {len(info.subset)} draws some with the seed"
        )
    return [ids.index(wnid) for wnid in info.subset]


def choose_classes(names: tuple[str, ...], count: int | None, seed: int) -> list[int]:
    """Return the classes to keep: all, or the first ``count`` of the seed's permutation, in that order.

    WordNet ids are permuted in sorted order, so that every copy of TinyImageNet gives the same classes.
    """
    total = len(names)
    if count is None or count >= total:
        return list(range(total))
    order = list(range(total))
    if all(WNID.fullmatch(name) for name in names):
        order.sort(key=names.__getitem__)
    return [order[i] for i in np.random.RandomState(seed % 2**32).permutation(total)[:count]]


def _check_known(info: DatasetInfo, classes: int, shape: tuple[int, ...], side: int | None) -> None:
    """Refuse what is not the data set of that name: another number of classes, another size."""
    # TinyImageNet is also handed on with some of its classes only; CIFAR never is.
    wrong_count = info.classes is not None and (classes > info.classes if info.subset else classes != info.classes)
    known = info.shape if info.shape is None or side is None else (side, side, info.shape[2])
    if wrong_count or (known is not None and shape != known):
        raise DataError(
            f"{info.name}: expected {info.classes} classes of {info.image_size} images, got {classes} "
            f"of {'x'.join(map(str, shape))}; check data.path, or use data.name = parquet, npz or folder"
        )


def _check_filled(where: str, names: Sequence[str], train: Labels, test: Labels) -> None:
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
