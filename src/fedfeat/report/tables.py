"""Tables as text: one renderer for terminals, Markdown, CSV and LaTeX; and the comparison of methods made with it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedfeat.report.collect import Group

NOTHING = "\u2013"
ROOMY = 112
_LATEX = str.maketrans(
    {character: rf"\{character}" for character in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "β": r"$\beta$"}
)


def terminal_table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: int, **look: Any) -> Table:
    """Return a table for a terminal: ``words`` columns of text, then numbers, which never wrap.

    :param look: further arguments of ``rich.table.Table``.
    """
    table = Table(**{"box": None, "pad_edge": False, **look})
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < words else "right", no_wrap=place >= words)
    for row in rows:
        table.add_row(*map(Text, row))  # a name from a file is no markup
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> str:
    """Return a Markdown table; cells are Markdown already (see ``markdown_text``)."""
    rule = ["---" if place < words else "---:" for place in range(len(headings))]
    return "".join("| " + " | ".join(row) + " |\n" for row in (headings, rule, *rows))


def markdown_text(text: str) -> str:
    """Return plain text as a cell of a Markdown table."""
    return re.sub(r"([\\|*])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


def csv_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return comma-separated values; numbers have full precision, None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([headings, *rows])
    return text.getvalue()


def latex_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], words: int, caption: str, notes: Iterable[str] = ()
) -> str:
    """Return a LaTeX table with notes below it; it needs the package booktabs."""
    head, *body = (" & ".join(map(latex_text, row)) + r" \\" for row in (headings, *rows))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * words}{'r' * (len(headings) - words)}}}", r"\toprule", head, r"\midrule"]
    lines += [*body, r"\bottomrule", r"\end{tabular}"]
    lines += [*(rf"\\ \footnotesize {latex_text(note)}" for note in notes), r"\end{table}"]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """Return text as LaTeX wants it; a number with a sign is mathematics."""
    if re.match(r"\(?[+-]\d", text):
        return f"${text.replace('±', chr(92) + 'pm')}$"
    return text.translate(_LATEX)


@dataclass(frozen=True)
class Column:
    """A measured column: the measure of a group, its heading, its unit, its digits, and what it means."""

    field: str
    heading: str
    narrow: str
    unit: str
    digits: int
    meaning: str
    deviation: bool = True
    better: Literal["more", "less"] = "more"


COLUMNS = (
    Column("final_accuracy", "final accuracy", "final\naccuracy", "%", 2, "top-1 over all classes after the last task"),
    Column(
        *("final_accuracy_uncorrected", "without correction", "without\ncorrec-\ntion", "%", 2),
        "the same model, its predictions not corrected (equal for a method that has no correction)",
    ),
    Column(
        *("average_incremental_accuracy", "average incremental", "average\nincre-\nmental", "%", 2),
        "mean over tasks of the accuracy after each task",
    ),
    Column(
        *("forgetting", "forgetting", "forget-\nting", "points", 2),
        "how far old tasks fell below their best; less is better",
        better="less",
    ),
    Column(
        *("backward_transfer", "backward transfer", "backward\ntransfer", "points", 2),
        "old tasks at the end minus when new",
    ),
    Column(
        *("megabytes_up", "up", "up", "MB", 1),
        "all clients to the server, whole run; 1 MB is a million bytes",
        deviation=False,
        better="less",
    ),
    Column(
        *("megabytes_down", "down", "down", "MB", 1),
        "the server to all clients, whole run",
        deviation=False,
        better="less",
    ),
    Column("images_per_second", "images/s", "images\nper s", "", 0, "training images per second of the rounds", False),
)


def cell(row: Group, column: Column) -> str:
    """Return a column's value of a row as ``mean ± std``."""
    spread = row.spread(column.field)
    if spread is None:
        return NOTHING
    return spread.text(column.digits) if column.deviation else f"{spread.mean:.{column.digits}f}"


def seeds_text(row: Group) -> str:
    """Return the seeds that count, and how many runs have not finished."""
    seeds = ", ".join(NOTHING if s is None else str(s) for s in row.seeds)
    unfinished = f"{row.unfinished} unfinished" if row.unfinished else ""
    return f"{seeds} ({unfinished})" if seeds and unfinished else seeds or unfinished


def comparison_terminal(rows: Sequence[Group], width: int = ROOMY) -> Table:
    """Return the comparison for the terminal; in a narrow one a deviation stands below its mean."""
    roomy = width >= ROOMY
    headings = ["method", "seeds", *(f"{c.narrow}\n{c.unit}".strip() for c in COLUMNS)]
    cells = (
        [row.label, _seed_count(row), *(cell(row, c).replace(" ± ", " ± " if roomy else "\n±") for c in COLUMNS)]
        for row in rows
    )
    title = Text(", ".join(sorted({row.dataset for row in rows})) + ": mean ± standard deviation over seeds")
    look = {"box": SIMPLE_HEAD, "show_edge": False, "padding": (0, int(roomy), 0, 0)}
    table = terminal_table(headings, cells, 1, title=title, title_justify="left", title_style="bold", **look)
    table.columns[0].overflow = "fold"
    return table


def _seed_count(row: Group) -> str:
    done = len(row.seeds)
    return f"{done} of {done + row.unfinished}" if row.unfinished else str(done)


def comparison_markdown(rows: Sequence[Group]) -> str:
    """Return the comparison as a Markdown table."""
    headings = ["method", "data set", "seeds", *(f"{c.heading} ({c.unit})" if c.unit else c.heading for c in COLUMNS)]
    cells = ([row.label, row.dataset, seeds_text(row), *(cell(row, c) for c in COLUMNS)] for row in rows)
    return markdown_table(headings, ([markdown_text(c) for c in line] for line in cells), 3)


def comparison_csv(rows: Sequence[Group]) -> str:
    """Return the comparison as CSV: a mean and a deviation column for each measure."""
    measures = [f"{c.field}_{part}" for c in COLUMNS for part in ("mean", "std")]
    lines = []
    for row in rows:
        spreads = (row.spread(c.field) for c in COLUMNS)
        values = [v for s in spreads for v in ((s.mean, s.std) if s else (None, None))]
        lines.append([row.label, row.method, row.dataset, " ".join(map(str, row.seeds)), row.unfinished, *values])
    return csv_table(["label", "method", "dataset", "seeds", "unfinished", *measures], lines)
