"""From finished runs to files: the drawing as PDF, SVG and PNG, its numbers as CSV and JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedfeat.errors import FedfeatError
from fedfeat.files import write_atomically
from fedfeat.paper.figures.figure import Finding, Numbers, PaperFigure, canonical
from fedfeat.paper.figures.style import FORMATS, save_figure
from fedfeat.sweep import Outcome


@dataclass(frozen=True)
class Made:
    """A figure that was made: its numbers, how the paper's statements fare, and the files, the PDF first."""

    figure: PaperFigure
    numbers: Numbers
    findings: list[Finding]
    files: list[Path]


def make_figure(figure: PaperFigure, runs: Sequence[Outcome], folder: Path) -> Made:
    """Measure finished runs, draw, and write ``NAME.pdf``, ``.svg``, ``.png``, ``.csv`` and ``.json`` into a folder."""
    write_numbers(figure, runs, folder)
    return draw_again(figure, folder)


def write_numbers(figure: PaperFigure, runs: Sequence[Outcome], folder: Path) -> Numbers:
    """Measure finished runs and write the numbers alone, where nothing can be drawn."""
    numbers = figure.measure(runs)
    content = {
        "figure": figure.name,
        "title": figure.title,
        "note": figure.note,
        "runs": [run.path.name for run in runs if run.result is not None],
        "findings": [asdict(finding) for finding in figure.findings(numbers)],
        **numbers.to_json(),
    }
    write_atomically(folder / f"{figure.name}.csv", numbers.to_csv().encode())
    write_atomically(folder / f"{figure.name}.json", canonical(content).encode())
    return numbers


def draw_again(figure: PaperFigure, folder: Path) -> Made:
    """Draw a figure from the numbers in a folder."""
    save_figure(figure.draw(read_figure(figure, folder).numbers), folder / figure.name)
    return read_figure(figure, folder)


def read_figure(figure: PaperFigure, folder: Path) -> Made:
    """Read the numbers of a figure made before."""
    path = folder / f"{figure.name}.json"
    if not path.is_file():
        raise FedfeatError(f"{path}: {figure.name} has not been made here; run: fedfeat paper run {figure.name}")
    try:
        numbers = Numbers.from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise FedfeatError(f"{path}: not the numbers of a figure ({error}); remove it and make it anew") from None
    files = [path for kind in (*FORMATS, "csv", "json") if (path := folder / f"{figure.name}.{kind}").is_file()]
    return Made(figure, numbers, figure.findings(numbers), files)
