"""Who joined, what was asked, what was refused and when: one file of JSON lines that is only ever appended to.

Several processes write to it. A line is one write, strangers' words cannot begin another, and a full file is put aside
once, so the disk cannot be filled.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfeat.core.errors import one_line

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

AUDIT = "audit.jsonl"
LARGEST = 8 << 20
MOST_ENTRIES = 1000  # of a list


class AuditLog:
    """The file at a path, or nothing at all without one."""

    def __init__(self, path: Path | None, largest: int = LARGEST) -> None:
        self.path, self.largest = path, largest

    def note(self, event: str, **facts: Any) -> None:
        """Append what happened; a disk that refuses does not stop the federation."""
        if self.path is None:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **_plain(facts)}) + "\n"
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                if self.path.exists() and self.path.stat().st_size + len(line) > self.largest:
                    self.path.replace(self.path.with_name(self.path.name + ".1"))
                descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(descriptor, line.encode())
                finally:
                    os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time: the file may be put aside between a look at it and a write."""
    if fcntl is None:
        yield
        return
    # Readable by nobody else: whoever can open it could hold it.
    with os.fdopen(os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _plain(value: Any) -> Any:
    """Return a fact as JSON: short, and every text one line."""
    if isinstance(value, Mapping):
        return {one_line(key, 80): _plain(entry) for key, entry in list(value.items())[:MOST_ENTRIES]}
    if isinstance(value, list | tuple | set):
        return [_plain(entry) for entry in list(value)[:MOST_ENTRIES]]
    return value if isinstance(value, bool | int | None) else one_line(value)
