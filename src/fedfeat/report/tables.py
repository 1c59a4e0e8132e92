"""The comparison of methods as a table: for the terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedfeat.report.collect import Spread, SummaryRow

NOTHING = "\u2013"
ROOMY = 112


@dataclass(frozen=True)
class Column:
    """A measured column: the field of a row, its heading, its unit, its digits, and what it means."""

    field: str
    heading: str
    narrow: str
    unit: str
    digits: int
    meaning: str
    deviation: bool = True


COLUMNS = (
    Column(
        "final_accuracy",
        "final accuracy",
        "final\naccuracy",
        "%",
        2,
        "top-1 over all classes after the last task",
    ),
    Column(
        "final_accuracy_uncorrected",
        "without correction",
        "without\ncorrec-\ntion",
        "%",
        2,
        "the same model, its predictions not corrected (equal for a method that has no correction)",
    ),
    Column(
        "average_incremental_accuracy",
        "average incremental",
        "average\nincre-\nmental",
        "%",
        2,
        "mean over tasks of the accuracy after each task",
    ),
    Column(
        "forgetting",
        "forgetting",
        "forget-\nting",
        "points",
        2,
        "how far old tasks fell below their best; less is better",
    ),
    Column(
        "backward_transfer",
        "backward transfer",
        "backward\ntransfer",
        "points",
        2,
        "old tasks at the end minus when new",
    ),
    Column(
        "megabytes_up",
        "up",
        "up",
        "MB",
        1,
        "all clients to the server, whole run; 1 MB is a million bytes",
        False,
    ),
    Column("megabytes_down", "down", "down", "MB", 1, "the server to all clients, whole run", False),
    Column(
        "images_per_second",
        "images/s",
        "images\nper s",
        "",
        0,
        "training images per second of the rounds",
        False,
    ),
)


def cell(row: SummaryRow, column: Column) -> str:
    """Return a column's value of a row as ``mean ± std``."""
    spread: Spread | None = getattr(row, column.field)
    if spread is None:
        return NOTHING
    return spread.text(column.digits) if column.deviation else f"{spread.mean:.{column.digits}f}"


def seeds_text(row: SummaryRow) -> str:
    """Return the seeds that count, and how many runs have not finished."""
    seeds = ", ".join(NOTHING if s is None else str(s) for s in row.seeds)
    unfinished = f"{row.unfinished} unfinished" if row.unfinished else ""
    return f"{seeds} ({unfinished})" if seeds and unfinished else seeds or unfinished


def terminal_table(rows: Sequence[SummaryRow], width: int = ROOMY) -> Table:
    """Return the comparison for the terminal; in a narrow one a deviation stands below its mean."""
    roomy = width >= ROOMY
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, int(roomy), 0, 0))
    table.title, table.title_justify, table.title_style = _title(rows), "left", "bold"
    table.add_column("method", overflow="fold")
    table.add_column("seeds", justify="right")
    for column in COLUMNS:
        table.add_column(f"{column.narrow}\n{column.unit}".strip(), justify="right")
    for row in rows:
        # Text, not str: a name from a file is no markup.
        cells = (cell(row, c).replace(" ± ", " ± " if roomy else "\n±") for c in COLUMNS)
        table.add_row(Text(row.label), _seed_count(row), *cells)
    return table


def _seed_count(row: SummaryRow) -> str:
    done = len(row.seeds)
    return f"{done} of {done + row.unfinished}" if row.unfinished else str(done)


def _title(rows: Sequence[SummaryRow]) -> Text:
    return Text(", ".join(sorted({row.dataset for row in rows})) + ": mean ± standard deviation over seeds")


def markdown_table(rows: Sequence[SummaryRow]) -> str:
    """Return the comparison as a Markdown table."""
    units = (f"{c.heading} ({c.unit})" if c.unit else c.heading for c in COLUMNS)
    lines = [_markdown_line(["method", "data set", "seeds", *units])]
    lines.append("|---|---|---|" + "---:|" * len(COLUMNS))
    cells = ([row.label, row.dataset, seeds_text(row), *(cell(row, c) for c in COLUMNS)] for row in rows)
    lines += map(_markdown_line, cells)
    return "\n".join(lines) + "\n"


def _markdown_line(cells: list[str]) -> str:
    safe = (" ".join(c.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for c in cells)
    return "| " + " | ".join(safe) + " |"


def csv_table(rows: Sequence[SummaryRow]) -> str:
    """Return the comparison as CSV with full precision: a mean and a deviation column for each measure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = [f"{c.field}_{part}" for c in COLUMNS for part in ("mean", "std")]
    writer.writerow(["label", "method", "dataset", "seeds", "unfinished", *measures])
    for row in rows:
        spreads: list[Spread | None] = [getattr(row, c.field) for c in COLUMNS]
        values = [v for s in spreads for v in ((s.mean, s.std) if s else (None, None))]
        seeds = " ".join(str(s) for s in row.seeds)
        numbers = ["" if v is None else repr(v) for v in values]
        writer.writerow([row.label, row.method, row.dataset, seeds, row.unfinished, *numbers])
    return text.getvalue()
