"""Outcomes made of numbers, for figures that only read results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedfeat.config.config import Config
from fedfeat.runs.identity import folder_name
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.figure import Numbers


def outcome(config: Config, accuracies: Sequence[float]) -> RunOutcome:
    """A run that ended with these accuracies after its tasks."""
    result: dict[str, Any] = {"accuracy_after_task": list(accuracies), "final_accuracy": accuracies[-1]}
    return RunOutcome(config, Path(folder_name(config)), result)


def failed(config: Config, error: str = "the disk is full") -> RunOutcome:
    return RunOutcome(config, Path("nowhere"), None, error)


def row_of(numbers: Numbers, **wanted: Any) -> dict[str, Any]:
    (row,) = numbers.where(**wanted)
    return row
