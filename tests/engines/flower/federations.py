"""Helpers of the federation tests: comparing with a simulation, waiting, and looking at processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedfeat.runs.experiment import Result
from toy import untimed


def comparable(result: Result) -> Result:
    """Return a result without what the engine decides."""
    config = {k: v for k, v in result["config"].items() if k != "engine"}
    return {**untimed(result), "config": config}


def eventually(condition: Callable[[], object], seconds: float = 30.0, what: str = "the condition") -> None:
    """Wait until something is true; fail when it does not become so."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.1)


def running(pid: int) -> bool:
    """Tell whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_that_mention(text: str) -> list[str]:
    """Return the command lines of all running processes that hold a text, such as a folder of this test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and running(int(entry.name)):
            found.append(line)
    return found
