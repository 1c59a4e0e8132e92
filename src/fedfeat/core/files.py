"""Files that are whole or not there: written beside, flushed, renamed; a full disk is one sentence."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfeat.core.errors import FedfeatError


class DiskError(FedfeatError):
    """The file system refused: full, read-only or not allowed."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a refusal of the file system into one sentence that names the path and the remedy."""
    try:
        yield
    except OSError as error:
        reason = {
            errno.ENOSPC: "the disk is full; free some space",
            errno.EDQUOT: "the quota is used up; free some space",
            errno.EACCES: "permission is denied; choose a folder you may write to",
            errno.EPERM: "permission is denied; choose a folder you may write to",
            errno.EROFS: "the file system is read-only; choose another folder",
            errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
            errno.EISDIR: "a folder of that name is in the way; choose another name",
            errno.EEXIST: "a file of that name is in the way; choose another folder",
        }.get(error.errno or 0)
        if reason is None:
            raise
        raise DiskError(f"{path}: cannot be written, {reason} (what was finished before is kept)") from error


def refuse_unwritable(folder: Path) -> None:
    """Refuse a folder that could not be made or written to, as far as that can be known without trying."""
    with disk_errors(folder):
        above = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not above.is_dir():
            raise OSError(errno.EEXIST if above == folder else errno.ENOTDIR, "")
        if not os.access(above, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, "")


def expanded(path: str | None) -> Path | None:
    """Return a path with ``~`` and environment variables expanded, or None when it is unset."""
    return None if path is None else Path(os.path.expandvars(path)).expanduser()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or nothing."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a kill in the middle of a write left behind; nobody else may be writing there."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter, also of one that is there already."""
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def json_ready(value: Any) -> Any:
    """Return a value as JSON knows it: a number that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: json_ready(entry) for key, entry in value.items()}
    return [json_ready(entry) for entry in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON, whole or not at all."""
    write_atomically(path, (json.dumps(json_ready(value), indent=2, allow_nan=False) + "\n").encode())


def json_digest(value: Any) -> str:
    """Return the checksum of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
