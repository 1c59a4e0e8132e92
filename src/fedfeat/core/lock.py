"""One program at a time in a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedfeat.core.errors import FedfeatError

try:
    import fcntl
except ImportError:  # not on Windows: there nothing keeps two programs from one folder
    fcntl = None  # type: ignore[assignment]


@contextmanager
def lock_folder(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Keep a second program out of a run folder; the lock goes with the process that holds it.

    :param wait: seconds to wait for another program that may be about to end.
    """
    if fcntl is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    limit = time.monotonic() + wait
    with (folder / ".lock").open("a+") as file:
        while not _taken(file):
            if time.monotonic() >= limit:
                raise _in_use(folder, file)
            time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def refuse_locked(folder: Path) -> None:
    """Refuse a folder that another program is at work in; nothing is written."""
    if fcntl is not None and (folder / ".lock").is_file():
        with (folder / ".lock").open("r+") as file:
            if not _taken(file):
                raise _in_use(folder, file)


def _in_use(folder: Path, file: IO[str]) -> FedfeatError:
    file.seek(0)
    return FedfeatError(f"{folder}: another program (process {file.read()}) is running this; wait for it, or stop it")


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
