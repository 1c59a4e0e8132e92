"""The reproduction page: every published number, ours where a record exists, the command, and how to read the gap."""

from __future__ import annotations

import functools
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from fedfeat.config.presets import Cell
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat_reproduction.cells import OTHER_FORMS
from fedfeat_reproduction.choices import cell_of, changes_in
from fedfeat_reproduction.choices_record import QUICK_FILE, MeasuredChoices, read_measured
from fedfeat_reproduction.choices_runs import CHOICES
from fedfeat_reproduction.ours import Line, Shelf, other_forms, with_other_forms
from fedfeat_reproduction.page_choices import changes_text, choices_section
from fedfeat_reproduction.published import Entry
from fedfeat_reproduction.records import Record, read_records
from fedfeat_reproduction.show import published_text, to_markdown
from fedfeat_reproduction.sources import CALIBRATE
from fedfeat_reproduction.tables import MAIN, TABLES, PaperTable

HEAD = """# Reproduction

<!-- Written by `fedfeat paper page` from the records in `results/`; edit `readings.toml` or `choices.toml` instead. -->
<!-- not run on this page (a GPU): fedfeat paper run -->

This page holds every number of the paper's tables, and ours wherever one was really run. Ours come from the JSON
records in [`results/`](../results), one per run, and from nothing else. A figure of one seed has no spread. Differences
are ours less the published value, in points of accuracy.

*Calibrated* is not in the paper: the add-on [`calibrate`](calibration.md) on top of the same method. It helps a linear
classifier as well as a fixed one, so methods are to be compared within one column.

A run of your own: `fedfeat paper run NAME --only ...` runs what is missing, `fedfeat paper show NAME` prints the table,
`fedfeat paper record RUN --images ...` writes a record. With `--quick` everything runs in minutes on the built-in
digits, to see how it works; those numbers have nothing to do with the paper's.
"""
SUMMARY = "summary"
SUMMED_UP = ("fedcbdr", "fedcbdr+feat")
NO_READING = "No reading of these figures has been written yet."


def write_page(results: Path, out: Path) -> list[str]:
    """Write the page; return why some records are left out of it."""
    shelf = Shelf(read_records(results))
    if not shelf.records:
        raise FedfeatError(f"{results}: no record of a run is there; 'fedfeat paper record RUN' writes one")
    write_atomically(out, render_page(shelf.records, read_measured(results / QUICK_FILE)).encode())
    return shelf.strange


def render_page(records: Sequence[Record], small: MeasuredChoices | None = None) -> str:
    """Return the page as Markdown; ``small`` are effects of choices on the built-in digits."""
    shelf = Shelf(records)
    records = shelf.records
    parts = [HEAD, *_summary(shelf), *(_table_section(table, shelf) for table in TABLES.values())]
    reading = _wrapped(read_readings()[CHOICES]["effects"])
    parts += [choices_section(records, small, reading), _runs_section(records)]
    return "\n".join(parts)


def _summary(shelf: Shelf) -> list[str]:
    """Return FEAT_F and what it is built on, wherever one of them was run, and what is to be learned from it."""
    lines = [shelf.line(entry) for entry in TABLES[MAIN].entries if entry.method in SUMMED_UP]
    cells = _cells_with_figures(lines)
    if not cells:
        return []
    lines = with_other_forms(lines, shelf)
    shown = to_markdown([line for cell in cells for line in lines if line.entry.cell == cell])
    return [f"## In short\n\n{shown}\n{_wrapped(read_readings()[SUMMARY]['all'])}\n"]


def _table_section(table: PaperTable, shelf: Shelf) -> str:
    """Return a section per cell of which something was run, and the published values of the others in one grid."""
    lines = [shelf.line(entry) for entry in table.entries]
    cells = _cells_with_figures(lines)
    text = f"## {table.title}\n\n{_wrapped(f'`{table.name}`: {table.unit}. {table.note}')}\n"
    text += "".join(_cell_section(table, cell, [n for n in lines if n.entry.cell == cell], shelf) for cell in cells)
    return text + _not_run(table, [line.entry for line in lines if line.entry.cell not in cells])


def _cell_section(table: PaperTable, cell: Cell, lines: Sequence[Line], shelf: Shelf) -> str:
    """Return the paper's rows, in the main table also other forms and methods, the commands and the reading."""
    only = f"{table.name} --only {cell.split},beta{cell.beta:g},k{cell.clients}"
    reading = read_readings().get(table.name, {}).get(cell.name, NO_READING)
    commands = [only]
    if table.name == MAIN:
        methods = _further(cell, lines, shelf)
        also = f" --also {','.join(methods)}" if methods else ""
        commands = [only + end for end in (also, *_form_runs(lines, shelf))]
        further = [shelf.line(Entry(method, method, cell, None)) for method in methods]
        lines = [*with_other_forms(lines, shelf), *further]
    shown = to_markdown(lines, setting=False)
    return f"\n### {cell.title}\n\n{_command(commands, table)}\n{shown}\n{_wrapped(reading)}\n"


def _form_runs(lines: Sequence[Line], shelf: Shelf) -> list[str]:
    """Return what ends the command for each row that was run with another form."""
    return [
        f",{line.entry.method} " + " ".join(f"--set {change}" for change in OTHER_FORMS[form])
        for line in lines
        for form in other_forms(line, shelf)
    ]


def _further(cell: Cell, lines: Sequence[Line], shelf: Shelf) -> list[str]:
    there = {line.entry.method for line in lines}
    methods = {method.removesuffix(CALIBRATE) for _, method in shelf.found}
    return [m for m in sorted(methods - there) if shelf.has(cell, m) or shelf.has(cell, m + CALIBRATE)]


def _not_run(table: PaperTable, entries: Sequence[Entry]) -> str:
    """Return the published values of the cells of which nothing was run, as the paper lays them out."""
    if not entries:
        return ""
    text = f"\n### Not run yet ({table.name})\n\n{_command([table.name], table)}"
    for clients in dict.fromkeys(entry.cell.clients for entry in entries):
        grid = _published_grid([entry for entry in entries if entry.cell.clients == clients])
        text += f"\nPublished, K = {clients}:\n\n{grid}"
    return text


def _published_grid(entries: Sequence[Entry]) -> str:
    rows: dict[str, list[str]] = {}
    for entry in entries:
        rows.setdefault(entry.label, []).append(published_text(entry.published))
    columns = list(dict.fromkeys((e.cell, e.task) for e in entries))
    names = [f"{c.split}, β {c.beta:g}" + (f", task {task}" if task else "") for c, task in columns]
    table = [["row", *names], ["---", *["---:"] * len(names)], *([label, *row] for label, row in rows.items())]
    return "".join("| " + " | ".join(row) + " |\n" for row in table)


def _cells_with_figures(lines: Iterable[Line]) -> list[Cell]:
    return list(dict.fromkeys(line.entry.cell for line in lines if line.ours or line.calibrated))


def _command(runs: Sequence[str], table: PaperTable) -> str:
    calibrate = " --calibrate" if table.entries[0].measure == "accuracy" else ""
    return "```sh\n" + "".join(f"fedfeat paper run {run}{calibrate} --engine cuda\n" for run in runs) + "```\n"


def read_readings() -> dict[str, dict[str, str]]:
    """Return the hand-written readings, by table and cell, and of the choices."""
    text = resources.files("fedfeat_reproduction").joinpath("readings.toml").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = tomllib.loads(text)
    return found


def missing_readings(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the tables and cells that have figures of ours and no reading."""
    shelf, written = Shelf(records), read_readings()
    return [
        (table.name, cell.name)
        for table in TABLES.values()
        for cell in _cells_with_figures(shelf.line(entry) for entry in table.entries)
        if cell.name not in written.get(table.name, {})
    ]


def _runs_section(records: Sequence[Record]) -> str:
    """Return what was run: where, on what images, with which versions."""
    rows = [
        "| setting | method | seed | final | not as usual | images | hardware | torch | commit |",
        "|---|---|---:|---:|---|---|---|---|---|",
    ]
    images = list(dict.fromkeys(r.images for r in records))
    for kept in records:
        cell = cell_of(kept)
        hardware = kept.environment.get("gpu") or f"{kept.environment.get('cpus', '?')} CPU cores"
        where = cell.name if cell else kept.dataset
        number = f"({images.index(kept.images) + 1})"
        changes = changes_text(changes_in(kept, cell), cell, kept.method) if cell else ""
        told = (kept.environment.get("torch", "?"), kept.commit)
        values = (
            where,
            f"`{kept.method}`",
            str(kept.seed),
            f"{kept.final_accuracy:.2f}",
            changes,
            number,
            hardware,
            *told,
        )
        rows.append("| " + " | ".join(values) + " |")
    legend = [f"({n}) {text}" for n, text in enumerate(images, 1)]
    return "\n".join(["## Runs\n", *rows, "", "Images:", "", *(f"- {text}" for text in legend), ""])


def _wrapped(text: str) -> str:
    """Return text with lines of one width; blank lines part paragraphs."""
    fold = functools.partial(textwrap.fill, width=118, break_on_hyphens=False, break_long_words=False)
    return "\n\n".join(fold(" ".join(paragraph.split())) for paragraph in text.strip().split("\n\n"))
