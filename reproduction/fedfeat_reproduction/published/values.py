"""Reading the published numbers: each becomes an entry that knows its cell, its method and its name in the paper."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal, NamedTuple

from fedfeat.config.presets import Cell
from fedfeat_reproduction.cells import parse_cell

# The paper's names of rows, table by table, and our methods. Its tables of parts leave the ETF unnamed at times.
BASELINES = {
    "FedEWC": "fedewc",
    "FedLwF": "fedlwf",
    "TARGET": "target",
    "LANDER": "lander",
    "Re-Fed+": "refed",
    "FedSSI": "fedssi",
    "FedCBDR": "fedcbdr",
    "FEAT_R": "refed+feat",
    "FEAT_F": "fedcbdr+feat",
}
ABLATION = {
    "FedCBDR": "fedcbdr",
    "+ETF": "fedcbdr+etf",
    "+ETF+GSA": "fedcbdr+etf+gsa",
    "+ETF+EGC": "fedcbdr+etf+egc",
    "+ETF+GSA+EGC": "fedcbdr+feat",
}
STRATEGIES = {
    "FedCBDR": "fedcbdr",
    "+ MOON": "fedcbdr+moon",
    "+ FedRCL": "fedcbdr+fedrcl",
    "+ CLIP2FL": "fedcbdr+clip2fl",
    "+ FedFSA": "fedcbdr+fedfsa",
    "+ FEAT": "fedcbdr+feat",
}
TASKS = {
    "FedCBDR": "fedcbdr",
    "+ GSA": "fedcbdr+etf+gsa",
    "+ EGC": "fedcbdr+etf+egc",
    "+ EGC + GSA": "fedcbdr+feat",
}


class Value(NamedTuple):
    """A published number, with its standard deviation where the paper gives one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Entry:
    """One number of one table."""

    label: str  # the paper's name of the row
    method: str  # ours
    cell: Cell
    published: Value | None
    task: int | None = None  # accuracy on this task's classes after the last one; None: on all classes
    measure: Literal["accuracy", "numbers sent"] = "accuracy"


def read_entries(file: str, methods: Mapping[str, str]) -> list[Entry]:
    """Read ``published/FILE``: a row per method, a column per cell, perhaps followed by ``task N``."""
    text = resources.files("fedfeat_reproduction.published").joinpath(file).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return [entry for row in rows for entry in _entries(row, methods)]


def _entries(row: dict[str, str], methods: Mapping[str, str]) -> Iterator[Entry]:
    clients, label = int(row.pop("clients", "5")), row.pop("method")
    for column, text in row.items():
        cell, _, task = column.partition(" task ")
        mean, _, std = text.partition("±")
        value = Value(float(mean), float(std) if std else None)
        yield Entry(label, methods[label], parse_cell(cell, clients), value, int(task) if task else None)
