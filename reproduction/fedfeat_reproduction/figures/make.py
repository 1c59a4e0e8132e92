"""From finished runs to files: the drawing as PDF, SVG and PNG, its numbers as CSV and JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.asked import USUAL, Asked
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, canonical
from fedfeat_reproduction.figures.style import FORMATS, save_figure


@dataclass(frozen=True)
class Made:
    """A figure that was made: its numbers, how the paper's statements fare, and the files, the PDF first."""

    figure: PaperFigure
    numbers: Numbers
    findings: list[Finding]
    files: list[Path]
    asked: Asked


def make_figure(figure: PaperFigure, runs: Sequence[RunOutcome], folder: Path, asked: Asked = USUAL) -> Made:
    """Measure finished runs, draw, and write ``NAME.pdf``, ``.svg``, ``.png``, ``.csv`` and ``.json`` into a folder."""
    write_numbers(figure, runs, folder, asked)
    return draw_again(figure, folder)


def write_numbers(figure: PaperFigure, runs: Sequence[RunOutcome], folder: Path, asked: Asked = USUAL) -> Numbers:
    """Measure finished runs, each folder once, and write the numbers alone, where nothing can be drawn."""
    runs = list({run.path: run for run in runs}.values())
    numbers = figure.measure(runs)
    content = {
        "figure": figure.name,
        "title": figure.title,
        "note": figure.note,
        **asked.to_json(),
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


def read_figure(figure: PaperFigure, folder: Path, options: str = "") -> Made:
    """Read the numbers of a figure made before.

    :param options: of ``fedfeat paper run``, with which a missing figure would be made in this folder.
    """
    path = folder / f"{figure.name}.json"
    if not path.is_file():
        command = f"fedfeat paper run {figure.name} {options}".rstrip()
        raise FedfeatError(f"{path}: {figure.name} has not been made here; run: {command}")
    try:
        table = json.loads(path.read_text())
        numbers, asked = Numbers.from_json(table), Asked.from_json(table)
    except (ValueError, KeyError, TypeError) as error:
        raise FedfeatError(f"{path}: not the numbers of a figure ({error}); remove it and make it anew") from None
    files = [path for kind in (*FORMATS, "csv", "json") if (path := folder / f"{figure.name}.{kind}").is_file()]
    return Made(figure, numbers, figure.findings(numbers), files, asked)
