"""A figure of the paper on a terminal: its numbers, the paper's statements about it, and where the drawing lies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedfeat.core.errors import FedfeatError

Value = str | int | float | None


def print_figure(name: str, folder: Path, format: str, console: Console, options: str = "") -> None:
    """Print a figure that was made before; ``options`` are those that would make it."""
    from fedfeat_reproduction.figures import FIGURES, read_figure

    made = read_figure(FIGURES[name], folder, options)
    rows = made.numbers.rows
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if format == "csv":
        print(made.numbers.to_csv(), end="")
        return
    if format == "markdown":
        print(_markdown(columns, rows), end="")
        return
    if format != "terminal":
        raise FedfeatError(
            f"--format {format}: figures are printed as terminal, markdown or csv; the PDF goes into LaTeX"
        )
    console.print(made.figure.title, style="bold")
    if made.asked.text:
        console.print(made.asked.text, style="yellow")
    for kind in _kinds(rows):
        console.print(_table(kind))
        console.print()
    if made.findings:
        console.print("What the paper says, and whether these numbers say it too:")
    for finding in made.findings:
        console.print(f"{'yes' if finding.holds else 'NO '}  {finding.claim}: {finding.seen}")
    console.print(made.figure.note, style="dim")
    console.print("\n".join(str(path) for path in made.files))


def run_options(quick: bool, out: Path | None) -> str:
    """Return the options of ``fedfeat paper run`` that put a figure where ``show`` looks for it."""
    return " ".join(["--quick"] * quick + [f"--out {shlex.quote(str(out))}"] * (out is not None))


def _kinds(rows: list[dict[str, Value]]) -> list[list[dict[str, Value]]]:
    """Return rows by the columns they fill: a figure may hold several tables, of its panels and of its means."""
    kinds: dict[tuple[str, ...], list[dict[str, Value]]] = {}
    for row in rows:
        kinds.setdefault(tuple(row), []).append(row)
    return list(kinds.values())


def _table(rows: list[dict[str, Value]]) -> Table:
    columns = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_text(row[key]) for key in columns))
    return table


def _markdown(columns: list[str], rows: list[dict[str, Value]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_text(row.get(key)) for key in columns] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _text(value: Mapping[str, Value] | Value) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
