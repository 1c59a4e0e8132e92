"""Going back to an earlier place of a run: how a place is written, and the record that such a step leaves.

A place is ``TASK:ROUND``, after a round, or ``TASK:end``, counted from 1 as people do. The record lies beside the
checkpoints, in ``rollbacks.json``: a checkpoint would forget it with what it forgets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedfeat.core.errors import CheckpointError, ConfigError
from fedfeat.core.files import write_json

ROLLBACKS = "rollbacks.json"
Rollback = dict[str, Any]  # from and to as text, the rounds that are repeated, when


class Place(NamedTuple):
    """Where a checkpoint stands: the task from 0, its rounds so far, and whether it was brought to its end."""

    task: int
    rounds: int
    ended: bool

    def __str__(self) -> str:
        return f"{self.task + 1}:{'end' if self.ended else self.rounds}"

    @classmethod
    def of(cls, position: Mapping[str, Any]) -> Place:
        """Read the position of a checkpoint."""
        return cls(position["task"], position["round"], position["finished"])


def read_place(text: object) -> tuple[int, int | None]:
    """Return the task from 0 and its rounds, None for its end, of a place that somebody wrote."""
    found = re.fullmatch(r"([1-9]\d{0,5}):(end|[1-9]\d{0,5})", str(text))
    if found is None:
        raise ConfigError(f"--to: expected TASK:ROUND or TASK:end, such as 2:5 or 1:end, got {str(text)!r:.40}")
    return int(found[1]) - 1, None if found[2] == "end" else int(found[2])


def rollbacks_of(folder: Path) -> list[Rollback]:
    """Return how often a run went back, and where to."""
    try:
        return list(json.loads((folder / ROLLBACKS).read_text()))
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise CheckpointError(f"{folder / ROLLBACKS}: damaged; restore it, or start the run anew") from None


def add_rollback(folder: Path, record: Rollback) -> None:
    """Write down that a run goes back."""
    write_json(folder / ROLLBACKS, [*rollbacks_of(folder), record])


def repeated_rounds(folder: Path) -> int:
    """Return how many rounds of a run were asked more than once."""
    return sum(int(record["rounds"]) for record in rollbacks_of(folder))


def in_words(record: Rollback) -> str:
    """Say for people what happened."""
    return f"went back from {record['from']} to {record['to']} ({record['rounds']} rounds repeated, {record['time']})"
