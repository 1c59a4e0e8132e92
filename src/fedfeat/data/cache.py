"""Decoded pixels on disk, opened as memory maps: a data set is decoded once, not at every start."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.data.dataset import channel_statistics
from fedfeat.data.settings import home
from fedfeat.data.source import Decoded, Source

DECODING_VERSION = 2
"""Raise it whenever the same files would decode to other pixels, labels or order."""

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class CachedSplits:
    """Decoded splits with the statistics of the training images."""

    decoded: Decoded
    mean: tuple[float, ...]
    std: tuple[float, ...]


def decode_cached(source: Source, keep: Sequence[int], *, write: bool = True) -> CachedSplits:
    """Open the cache entry of these classes of a source, decoding and writing it first where needed.

    A source without files is built in and quick, so it is decoded every time.

    :param write: whether an entry that is missing may be written.
    """
    folder = home() / "decoded" / cache_key(source, keep)
    entry = _open_entry(folder) if source.files else None
    if entry is not None:
        return entry
    decoded = source.decode(keep)
    fresh = CachedSplits(decoded, *channel_statistics(decoded.train_images))
    if not source.files or not write:
        return fresh
    try:
        _write_entry(folder, fresh)
    except OSError as error:
        warnings.warn(f"decoded images are not cached, {folder.parent}: {error}", stacklevel=2)
        return fresh
    return _open_entry(folder) or fresh


def cache_key(source: Source, keep: Sequence[int]) -> str:
    """Hash the source's files (path, size, time of change), its kind, its classes and the kept ones."""
    digest = hashlib.sha256()
    head = [DECODING_VERSION, source.kind, list(source.class_names), [int(c) for c in keep]]
    digest.update(json.dumps(head).encode())
    for file in source.files:
        stat = file.stat()
        # os.fsencode also takes names that are not valid UTF-8.
        digest.update(os.fsencode(f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0"))
    return digest.hexdigest()[:32]


def _open_entry(folder: Path) -> CachedSplits | None:
    """Return None for an entry that is absent or damaged in any way."""
    try:
        entry_info = json.loads((folder / "entry.json").read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        if any(_checksum(arrays[name]) != entry_info["crc32"][name] for name in ARRAYS):
            return None
        return CachedSplits(Decoded(**arrays), tuple(entry_info["mean"]), tuple(entry_info["std"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _checksum(array: np.ndarray[Any, Any]) -> int:
    # All pages are about to be read for training anyway, so reading them here costs little.
    return zlib.crc32(repr((array.shape, array.dtype.str)).encode(), zlib.crc32(array.data))


def _write_entry(folder: Path, entry: CachedSplits) -> None:
    """Write beside and rename, so that a reader sees a whole entry or none, whoever else is writing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        arrays = {name: np.ascontiguousarray(getattr(entry.decoded, name)) for name in ARRAYS}
        for name, array in arrays.items():
            np.save(beside / f"{name}.npy", array)
        crc = {name: _checksum(array) for name, array in arrays.items()}
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
