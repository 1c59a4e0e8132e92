"""A figure of the paper: the experiments it needs, its numbers, its drawing, what the paper says; and its files."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedfeat.config.config import Config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat.report.tables import csv_table
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.experiments import deciding_overrides
from fedfeat_reproduction.figures.style import FORMATS, MUTED, paper_style, save_figure

Row = dict[str, Any]  # column -> text, number or None
MARK_WIDTH = 22  # letters of a mark below a drawing, to the inch


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
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave."""
        arrays = {k: np.array(v["values"], dtype=v["dtype"]) for k, v in table["arrays"].items()}
        return cls(list(table["rows"]), arrays)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order of their first appearance."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def to_csv(self) -> str:
        """Return the table as CSV, full precision."""
        return csv_table(self.columns, ([row.get(key) for key in self.columns] for row in self.rows))

    def where(self, **wanted: Any) -> list[Row]:
        """Return the rows that have these values."""
        return [r for r in self.rows if all(r.get(k) == v for k, v in wanted.items())]

    def values(self, column: str) -> list[Any]:
        """Return a column's different values in the order of their first appearance."""
        return list(dict.fromkeys(r[column] for r in self.rows if r.get(column) is not None))


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample deviation; one value has none."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def means_over_seeds(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over the seeds in which there was something to measure."""
    columns = {name: [found[name] for found in seeds if not math.isnan(found[name])] for name in seeds[0]}
    return {name: float(np.mean(values)) if values else float("nan") for name, values in columns.items()}


@dataclass(frozen=True)
class Finding:
    """One statement of the paper about a figure, and whether our numbers say the same."""

    claim: str
    seen: str
    holds: bool


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
    objection: Callable[[Sequence[Config]], str | None] = lambda configs: None  # why experiments will not do
    of_accuracies: bool = False  # needs no more of its runs than records hold


@dataclass(frozen=True)
class FigureOptions:
    """Changed settings (``KEY=VALUE``) and a choice of data sets and methods; a figure as published has neither."""

    overrides: tuple[str, ...] = ()
    only: str = ""
    mark: str = ""  # stands below the drawing: what it is not of

    @property
    def text(self) -> str:
        """Say how the figure differs from the usual one, nothing where it does not."""
        changes = [f"--set {override}" for override in deciding_overrides(self.overrides)]
        changes += [f"--only {self.only}"] * bool(self.only)
        return f"drawn with {', '.join(changes)}" if changes else ""

    def to_json(self) -> dict[str, Any]:
        """Return entries for the figure's JSON; where and how its runs are computed is no part of a figure."""
        mark = {"mark": self.mark} if self.mark else {}
        return {"set": list(deciding_overrides(self.overrides)), "only": self.only, **mark}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; a figure of an earlier version does not say."""
        return cls(tuple(table.get("set", ())), str(table.get("only", "")), str(table.get("mark", "")))


USUAL = FigureOptions()


@dataclass(frozen=True)
class DrawnFigure:
    """A figure that was made: its numbers, how the paper's statements fare, and the files, the PDF first."""

    figure: PaperFigure
    numbers: Numbers
    findings: list[Finding]
    files: list[Path]
    options: FigureOptions


def make_figure(
    figure: PaperFigure, runs: Sequence[RunOutcome], folder: Path, options: FigureOptions = USUAL
) -> DrawnFigure:
    """Measure finished runs, draw, and write ``NAME.pdf``, ``.svg``, ``.png``, ``.csv`` and ``.json`` into a folder."""
    write_numbers(figure, runs, folder, options)
    return draw_again(figure, folder)


def write_numbers(
    figure: PaperFigure, runs: Sequence[RunOutcome], folder: Path, options: FigureOptions = USUAL
) -> Numbers:
    """Measure finished runs, each folder once, and write the numbers alone, where nothing can be drawn."""
    runs = list({run.path: run for run in runs}.values())
    numbers = figure.measure(runs)
    content = {
        "figure": figure.name,
        "title": figure.title,
        "note": figure.note,
        **options.to_json(),
        "runs": [run.path.name for run in runs if run.result is not None],
        "findings": [asdict(finding) for finding in figure.findings(numbers)],
        **numbers.to_json(),
    }
    write_atomically(folder / f"{figure.name}.csv", numbers.to_csv().encode())
    write_atomically(folder / f"{figure.name}.json", f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode())
    return numbers


def draw_again(figure: PaperFigure, folder: Path) -> DrawnFigure:
    """Draw a figure from the numbers in a folder."""
    drawn = read_figure(figure, folder)
    picture = figure.draw(drawn.numbers)
    if drawn.options.mark:
        with paper_style():
            wrapped = textwrap.fill(drawn.options.mark, int(MARK_WIDTH * picture.get_figwidth()))
            picture.supxlabel(wrapped, fontsize=6.5, color=MUTED)
    save_figure(picture, folder / figure.name)
    return read_figure(figure, folder)


def read_figure(figure: PaperFigure, folder: Path, run_options: str = "") -> DrawnFigure:
    """Read the numbers of a figure made before.

    :param run_options: of ``fedfeat paper run``, with which a missing figure would be made in this folder.
    """
    path = folder / f"{figure.name}.json"
    if not path.is_file():
        command = f"fedfeat paper run {figure.name} {run_options}".rstrip()
        raise FedfeatError(f"{path}: {figure.name} has not been made here; run: {command}")
    try:
        table = json.loads(path.read_text())
        numbers, options = Numbers.from_json(table), FigureOptions.from_json(table)
    except (ValueError, KeyError, TypeError) as error:
        raise FedfeatError(f"{path}: not the numbers of a figure ({error}); remove it and make it anew") from None
    files = [path for kind in (*FORMATS, "csv", "json") if (path := folder / f"{figure.name}.{kind}").is_file()]
    return DrawnFigure(figure, numbers, figure.findings(numbers), files, options)
