"""A table of the paper, printed: on a terminal cell by cell, or as Markdown, CSV or LaTeX."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from fedfeat_reproduction.ours import Line
from fedfeat_reproduction.show import COLUMNS, cells_of, notes_of, to_csv, to_latex, to_markdown
from fedfeat_reproduction.tables import PaperTable

WIDE = 92


class Format(StrEnum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


def print_table(paper_table: PaperTable, lines: Sequence[Line], format: Format, console: Console) -> None:
    """Print published values and ours; on a terminal with a heading per cell and the notes."""
    if format is Format.terminal:
        console.print(paper_table.title, style="bold")
        for cell in dict.fromkeys(line.entry.cell for line in lines):
            console.print(f"\n{cell.title}  ({cell.name})")
            console.print(_terminal([line for line in lines if line.entry.cell == cell], console.width >= WIDE))
        console.print()
        for note in (paper_table.unit, *notes_of(lines), paper_table.note):
            console.print(note, style="dim")
        return
    if format is Format.latex:
        print(to_latex(lines, f"{paper_table.title} ({paper_table.unit})"), end="")
        return
    print(to_markdown(lines) if format is Format.markdown else to_csv(lines), end="")


def say_left_out(reasons: Sequence[str]) -> None:
    """Say beside the output what is not in it, each reason once."""
    for reason, times in Counter(reasons).items():
        print(f"left out: {reason}{f' ({times} runs)' if times > 1 else ''}", file=sys.stderr)


def _terminal(lines: Sequence[Line], wide: bool) -> Table:
    """Return the lines of one cell; a narrow terminal does without our names of methods."""
    tasks = any(line.entry.task for line in lines)
    columns = ["task"] * tasks + ["paper's name"] + ["method"] * wide + list(COLUMNS[3:])
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[len(columns) - len(COLUMNS[3:]) :]:
        column.justify, column.no_wrap = "right", True
    for line in lines:
        cells = cells_of(line)
        before = [str(line.entry.task)] * tasks + [cells[1]] + [cells[2]] * wide
        table.add_row(*before, *cells[3:])
    return table
