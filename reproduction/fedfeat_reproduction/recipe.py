"""What the recommended composition reached, and the runs it was chosen with: tables of its page, made from records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedfeat.config.presets import Cell, short_name
from fedfeat.core.files import write_atomically
from fedfeat.report.tables import markdown_table
from fedfeat_reproduction.choices import cell_of, changes_in
from fedfeat_reproduction.recommended import METHOD, SETTINGS
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.results import SeedMean

PARTS = {"balanced", "distil"}  # a run with one of them belongs here
NONE_YET = "No run yet.\n"
Changes = tuple[tuple[str, Any], ...]
Figures = dict[tuple[str, Changes], dict[Cell, SeedMean]]


def write_recipe_tables(records: Sequence[Record], page: Path) -> None:
    """Write the tables into their places on the page, which is otherwise written by hand."""
    text = page.read_text(encoding="utf-8")
    for place, validation in (("validation", True), ("test", False)):
        begin, end = f"<!-- {place} -->\n", f"<!-- /{place} -->"
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n{figures_markdown(collect(records, validation=validation))}\n{end}{after}"
    write_atomically(page, text.encode())


def collect(records: Iterable[Record], *, validation: bool) -> Figures:
    """Return final accuracies by composition, what a run changed in the recipe, and cell: mean over seeds."""
    values: dict[tuple[str, Changes], dict[Cell, dict[int, float]]] = {}
    for kept in records:
        cell = cell_of(kept)
        if cell is None or not PARTS & set(kept.method.split("+")):
            continue
        if kept.validates is validation:
            row = values.setdefault((kept.method, _changes(kept, cell)), {})
            row.setdefault(cell, {})[kept.seed] = kept.final_accuracy
    return {
        row: {cell: SeedMean(tuple(seeds[s] for s in sorted(seeds))) for cell, seeds in cells.items()}
        for row, cells in sorted(values.items(), key=lambda item: _order(item[0]))
    }


def figures_markdown(figures: Figures) -> str:
    """Return the figures as a table, a column for each cell."""
    cells = sorted({cell for row in figures.values() for cell in row}, key=lambda cell: cell.name)
    rows = [
        [f"`{short_name(method)}`", _told(changes), *(_shown(row.get(cell)) for cell in cells)]
        for (method, changes), row in figures.items()
    ]
    return markdown_table(["composition", "changed", *(cell.title for cell in cells)], rows, 2) if rows else NONE_YET


def _changes(kept: Record, cell: Cell) -> Changes:
    """Return what a run has that the recipe has not, beyond the validation split."""
    found = changes_in(kept, cell, SETTINGS)
    return tuple((key, value) for key, value in found.items() if key != "data.validation")


def _order(row: tuple[str, Changes]) -> tuple[bool, int, str, str]:
    method, changes = row
    return method != METHOD, len(changes), method, str(changes)


def _told(changes: Changes) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in changes)


def _shown(figure: SeedMean | None) -> str:
    if figure is None:
        return ""
    if figure.std is None:
        return f"{figure.mean:.2f}"
    return f"{figure.mean:.2f} ± {figure.std:.2f} ({len(figure.values)} seeds)"
