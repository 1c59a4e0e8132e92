"""What a figure of the paper is here: the experiments it needs, the numbers in it, the drawing, what the paper says."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedfeat.config import Config
from fedfeat.runs.sweep import RunOutcome

Row = dict[str, Any]  # column -> text, number or None


@dataclass(frozen=True)
class Numbers:
    """All that a figure shows: a table for people, and arrays too large for one (points, images, maps)."""

    rows: list[Row]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A mean over nothing is no number: None in tables, empty in CSV, null in JSON, which knows no nan.
        object.__setattr__(self, "rows", [{k: _number(v) for k, v in row.items()} for row in self.rows])

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        arrays = {k: {"dtype": str(v.dtype), "values": v.tolist()} for k, v in self.arrays.items()}
        return {"rows": self.rows, "arrays": arrays}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Numbers:
        """Read what ``to_json`` gave."""
        arrays = {k: np.array(v["values"], dtype=v["dtype"]) for k, v in table["arrays"].items()}
        return cls(list(table["rows"]), arrays)

    def to_csv(self) -> str:
        """Return the table as CSV, full precision."""
        text = io.StringIO()
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def where(self, **wanted: Any) -> list[Row]:
        """Return the rows that have these values."""
        return [r for r in self.rows if all(r.get(k) == v for k, v in wanted.items())]

    def values(self, column: str) -> list[Any]:
        """Return a column's different values in the order of their first appearance."""
        return list(dict.fromkeys(r[column] for r in self.rows if r.get(column) is not None))


@dataclass(frozen=True)
class Finding:
    """One statement of the paper about a figure, and whether our numbers say the same."""

    claim: str
    seen: str
    holds: bool


def no_objection(configs: Sequence[Config]) -> str | None:
    """Find nothing wrong with any experiments."""
    return None


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper; a drawing is made of its numbers alone, so it can be made again without the runs."""

    name: str
    title: str
    note: str  # how the numbers are obtained, and where the paper leaves a choice
    configs: Callable[[bool, Sequence[int]], list[Config]]  # (quick, seeds) -> experiments
    measure: Callable[[Sequence[RunOutcome]], Numbers]
    draw: Callable[[Numbers], Any]
    findings: Callable[[Numbers], list[Finding]]
    varies: tuple[str, ...] = ()  # settings that are its axis or tell its panels apart
    objection: Callable[[Sequence[Config]], str | None] = no_objection  # why it cannot be drawn from experiments


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample deviation; one value deviates by zero."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def canonical(value: Any) -> str:
    """Return readable JSON that is the same for the same numbers."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
