"""Times that can be trusted on a busy machine: variants take turns, and only ratios of neighbours are reported."""

from __future__ import annotations

import platform
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import fedfeat


class Seconds(NamedTuple):
    """What one piece of work took: on the clock, and of the processor (which other programs disturb less)."""

    wall: float
    cpu: float


Timed = Callable[[], Seconds]  # does the work once


@dataclass(frozen=True)
class Row:
    """One line of the table: a variant against its base, both measured in turns."""

    section: str
    variant: str
    base: str
    unit: str  # what the numbers below are: "ms per round", "MB"
    value: float
    base_value: float
    ratio: float  # median over turns of variant / base
    ratio_of_best: float  # smallest variant / smallest base
    ratio_of_cpu: float | None  # the same median, of processor time
    target: float | None = None
    values: list[float] = field(default_factory=list)
    base_values: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers."""
        return asdict(self)


def take_turns(variants: Mapping[str, Timed], repetitions: int, warm_up: int = 1) -> dict[str, list[Seconds]]:
    """Run every variant ``repetitions`` times, one after another in each turn, in an order that rotates."""
    for _ in range(warm_up):
        for run in variants.values():
            run()
    names = list(variants)
    seconds: dict[str, list[Seconds]] = {name: [] for name in names}
    for turn in range(repetitions):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(variants[name]())
    return seconds


def row(
    section: str,
    names: tuple[str, str],
    times: tuple[list[Seconds], list[Seconds]],
    *,
    unit: str = "ms per round",
    scale: float = 1e3,
    target: float | None = None,
) -> Row:
    """Compare a variant's times with its base's, turn by turn."""
    wall = [[scale * t.wall for t in series] for series in times]
    cpu = _median_ratio(*([t.cpu for t in series] for series in times))
    return _row(section, names, unit, wall[0], wall[1], cpu, target)


def memory_row(section: str, names: tuple[str, str], sizes: tuple[int, int], target: float | None = None) -> Row:
    """Compare two numbers of bytes."""
    return _row(section, names, "MB", [sizes[0] / 1e6], [sizes[1] / 1e6], None, target)


def _row(
    section: str,
    names: tuple[str, str],
    unit: str,
    values: list[float],
    base_values: list[float],
    cpu: float | None,
    target: float | None,
) -> Row:
    return Row(
        section,
        *names,
        unit,
        value=statistics.median(values),
        base_value=statistics.median(base_values),
        ratio=_median_ratio(values, base_values),
        ratio_of_best=min(values) / min(base_values),
        ratio_of_cpu=cpu,
        target=target,
        values=values,
        base_values=base_values,
    )


def _median_ratio(values: list[float], base_values: list[float]) -> float:
    return statistics.median(v / b for v, b in zip(values, base_values, strict=True))


def hardware(device: torch.device) -> str:
    """Return the name of what computes, fit for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} cores"


def versions() -> dict[str, str]:
    """Return what the figures were made with."""
    return {
        "fedfeat": fedfeat.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def slug(name: str) -> str:
    """Return a name fit for a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", listing.read_text()) if listing.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
