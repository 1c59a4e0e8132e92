"""Decoded pixels on disk, opened as memory maps: a data set is decoded once, not at every start.

Images are decoded straight into the files of an entry, so a data set may be larger than the memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.dataset import Images, channel_statistics, chunks
from fedfeat.data.images import decode_splits
from fedfeat.data.resize import Allocate, Fit, resize_splits
from fedfeat.data.settings import home
from fedfeat.data.source import Decoded, EncodedSource, Source

DECODING_VERSION = 2
"""Raise it whenever the same files would decode to other pixels, labels or order."""

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
STALE_SECONDS = 24 * 3600
TOLD_BYTES = 1 << 28  # of pixels, from which on it is said what decoding needs
NO_FIT = Fit()
log = logging.getLogger("fedfeat.data")


@dataclass(frozen=True)
class CachedSplits:
    """Decoded splits with the statistics of the training images."""

    decoded: Decoded
    mean: tuple[float, ...]
    std: tuple[float, ...]


def decode_cached(source: Source, keep: Sequence[int], fit: Fit = NO_FIT, *, write: bool = True) -> CachedSplits:
    """Open the cache entry of these classes of a source, decoding and writing it first where needed.

    A source without files is built in and quick, so it is decoded every time.

    :param write: whether an entry that is missing may be written.
    """
    folder = home() / "decoded" / cache_key(source, keep, fit)
    entry = _open_entry(folder) if source.files else None
    if entry is None and source.files and write:
        try:
            _write_entry(folder, partial(_decode, source, keep, fit))
        except OSError as error:
            warnings.warn(f"decoded images are not cached, {folder.parent}: {error}", stacklevel=2)
        else:
            entry = _open_entry(folder)
    return entry or _measured(_decode(source, keep, fit, in_memory))


def cache_key(source: Source, keep: Sequence[int], fit: Fit = NO_FIT) -> str:
    """Hash the source's files (path, size, time of change), its kind, its classes, the kept ones and the size."""
    digest = hashlib.sha256()
    head = [DECODING_VERSION, source.kind, list(source.class_names), [int(c) for c in keep]]
    head += [] if fit.side is None else [fit.side, fit.how]
    digest.update(json.dumps(head).encode())
    for file in source.files:
        stat = file.stat()
        # os.fsencode also takes names that are not valid UTF-8.
        digest.update(os.fsencode(f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0"))
    return digest.hexdigest()[:32]


def _decode(source: Source, keep: Sequence[int], fit: Fit, allocate: Allocate) -> Decoded:
    if isinstance(source, EncodedSource):
        return decode_splits(source, keep, fit, allocate)
    return resize_splits(source.decode(keep), fit, allocate)


def _measured(decoded: Decoded) -> CachedSplits:
    return CachedSplits(decoded, *channel_statistics(decoded.train_images))


def in_memory(name: str, shape: tuple[int, ...]) -> Images:
    """Return room for images in memory, or say that there is too little of it."""
    need_memory(
        f"{name}: nothing is written to {home()} here, so images are decoded into memory",
        shape,
        "decode them once with 'fedfeat data check', $FEDFEAT_HOME being on a disk with room, or lower data.image_size",
    )
    return np.empty(shape, dtype=np.uint8)


def need_memory(why: str, shape: tuple[int, ...], remedy: str) -> None:
    """Refuse to hold more images in memory than there is room for."""
    need, there = math.prod(shape), memory_bytes()
    if need > there:
        raise DataError(
            f"{why}, but {shape[0]:,} images of {size_in_words(shape)} need {need / 1e9:.1f} GB and this machine has "
            f"{there / 1e9:.1f} GB; {remedy}"
        )


def size_in_words(shape: tuple[int, ...]) -> str:
    """Return height, width and channels of images [N, H, W, C], such as 224x224x3."""
    return "x".join(map(str, shape[1:]))


def memory_bytes() -> int:
    """Return how much memory this machine has; without an answer, as much as anyone can ask for."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62


def on_disk(folder: Path, name: str, shape: tuple[int, ...]) -> Images:
    """Return room for images in a file, taken before the first is decoded; a full disk is found now."""
    need, free = math.prod(shape), shutil.disk_usage(folder).free
    if need >= TOLD_BYTES:
        log.info(
            "%s: %s images of %s are decoded once, to %.1f GB in %s (%.1f GB are free); memory holds a few at a time",
            name, f"{shape[0]:,}", size_in_words(shape), need / 1e9, folder.parent, free / 1e9,
        )  # fmt: skip
    path = folder / f"{name}.npy"
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def _open_entry(folder: Path) -> CachedSplits | None:
    """Return None for an entry that is absent or damaged in any way."""
    try:
        entry_info = json.loads((folder / "entry.json").read_text())
        arrays = _mapped(folder)
        if any(_checksum(arrays[name]) != entry_info["crc32"][name] for name in ARRAYS):
            return None
        return CachedSplits(Decoded(**arrays), tuple(entry_info["mean"]), tuple(entry_info["std"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _mapped(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}


def _checksum(array: np.ndarray[Any, Any]) -> int:
    crc = 0
    for chunk in chunks(array):
        crc = zlib.crc32(chunk.data, crc)
    return zlib.crc32(repr((array.shape, array.dtype.str)).encode(), crc)


def _write_entry(folder: Path, decode: Callable[[Allocate], Decoded]) -> None:
    """Write beside and rename, so that a reader sees a whole entry or none, whoever else is writing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        entry = _measured(decode(partial(on_disk, beside)))
        for name in ARRAYS:
            if not (beside / f"{name}.npy").is_file():
                np.save(beside / f"{name}.npy", np.ascontiguousarray(getattr(entry.decoded, name)))
        crc = {name: _checksum(array) for name, array in _mapped(beside).items()}
        entry_info = {"crc32": crc, "mean": entry.mean, "std": entry.std}
        (beside / "entry.json").write_text(json.dumps(entry_info))
        _replace_folder(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _replace_folder(beside: Path, folder: Path) -> None:
    try:
        beside.replace(folder)
    except OSError:
        # A folder is in the way: another process was quicker (then keep its entry), or it is damaged.
        if _open_entry(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            beside.replace(folder)


def _remove_stale(parent: Path) -> None:
    """Remove what a killed process left half written."""
    for left in parent.glob(".writing-*"):
        try:
            old = time.time() - left.stat().st_mtime > STALE_SECONDS
        except OSError:
            continue
        if old:
            shutil.rmtree(left, ignore_errors=True)
