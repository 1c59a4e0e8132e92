"""The tables of the paper: every published number with its cell and our method, and what to know of each table."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal, NamedTuple

from fedfeat.config.presets import Cell
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat.methods import canonical, parts_of

FOLDER = resources.files("fedfeat_reproduction").joinpath("published")
Measure = Literal["accuracy", "numbers sent"]


class Value(NamedTuple):
    """A published number, with its standard deviation where the paper gives one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class PaperEntry:
    """One number of one table."""

    label: str  # the paper's name of the row
    method: str  # ours
    cell: Cell
    published: Value | None
    task: int | None = None  # accuracy on this task's classes after the last one; None: on all classes
    measure: Measure = "accuracy"


@dataclass(frozen=True)
class PaperTable:
    """One table: numbers with their place, and a remark."""

    name: str
    title: str
    note: str
    entries: tuple[PaperEntry, ...]
    unit: str = "accuracy in percent after the last task"


def parse_cell(text: str, clients: int = 5) -> Cell:
    """Read ``cifar10-5-beta0.5`` or ``cifar10-5-beta0.5-k10``."""
    match = re.fullmatch(r"(\w+)-(\d+)-beta([\d.]+)(?:-k(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a cell such as cifar10-5-beta0.5")
    return Cell(match[1], int(match[2]), float(match[3]), int(match[4] or clients))


def _read_entries(file: str, measure: Measure) -> tuple[PaperEntry, ...]:
    """Read a file of numbers: a row per method, a column per cell, perhaps followed by ``task N``."""
    entries = []
    for row in csv.DictReader(FOLDER.joinpath(file).read_text(encoding="utf-8").splitlines()):
        clients, label, method = int(row.pop("clients", "5")), row.pop("row"), row.pop("method")
        for column, number in row.items():
            name, _, task = column.partition(" task ")
            mean, _, std = number.partition("±")
            value = Value(float(mean), float(std) if std else None)
            cell = parse_cell(name, clients)
            entries.append(PaperEntry(label, method, cell, value, int(task) if task else None, measure))
    return tuple(entries)


def _read_tables() -> dict[str, PaperTable]:
    listed = tomllib.loads(FOLDER.joinpath("tables.toml").read_text(encoding="utf-8"))["table"]
    return {
        about["name"]: PaperTable(entries=_read_entries(about.pop("file"), about.pop("measure", "accuracy")), **about)
        for about in listed
    }


MAIN = "table-main"
TABLES: Mapping[str, PaperTable] = _read_tables()
BASELINES = {entry.label: entry.method for entry in TABLES[MAIN].entries}  # the paper's names and ours


def select(entries: Sequence[PaperEntry], only: str) -> list[PaperEntry]:
    """Return the entries that ``--only`` names: words of one kind are alternatives, different kinds must all fit.

    ``cifar10-5,beta0.5,k5,fedcbdr+feat`` is one number of the main table; ``cifar10,fedcbdr,refed`` are many.
    """
    wanted: dict[str, set[str]] = {}
    for word in filter(None, map(str.strip, only.split(","))):
        kind, value = _kind(word, entries)
        wanted.setdefault(kind, set()).add(value)
    return [e for e in entries if all(values & set(_names(e)[kind]) for kind, values in wanted.items())]


def _names(entry: PaperEntry) -> dict[str, tuple[str, ...]]:
    """Return what an entry is called; a method also by its name in the main table, which others do not always use."""
    cell = entry.cell
    in_main = (label.lower() for label, method in BASELINES.items() if method == entry.method)
    return {
        "data": (cell.data, cell.split, cell.name, cell.name.rsplit("-", 1)[0]),
        "beta": (f"beta{cell.beta:g}",),
        "clients": (f"k{cell.clients}",),
        "method": (entry.method, entry.label.lower(), *in_main),
    }


def _kind(word: str, entries: Sequence[PaperEntry]) -> tuple[str, str]:
    text = word.lower()
    beta = re.fullmatch(r"beta(\d+\.?\d*|\.\d+)", text)
    if beta:
        text = f"beta{float(beta[1]):g}"
    names = [pair for entry in entries for pair in _names(entry).items()]
    for kind, values in names:
        if text in values:
            return kind, text
    known = {value for _, values in names for value in values}
    raise FedfeatError(f"--only {word!r}: nothing in this table is called so; {nearest(text, known)}")


def further_entries(entries: Sequence[PaperEntry], also: str) -> list[PaperEntry]:
    """Return entries without a published value: methods that ``--also`` adds to the same cells."""
    methods = list(dict.fromkeys(canonical(name) for name in also.split(",") if name.strip()))
    for method in methods:
        parts_of(method)  # an unknown name is answered with the nearest one
    there = {(e.cell, e.method) for e in entries}
    cells = dict.fromkeys((e.cell, e.task, e.measure) for e in entries)
    return [
        PaperEntry(method, method, cell, None, task, measure)
        for cell, task, measure in cells
        for method in methods
        if (cell, method) not in there
    ]
