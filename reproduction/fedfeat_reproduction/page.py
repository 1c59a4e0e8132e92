"""The reproduction page: every published number, ours where a record exists, the command, and how to read the gap."""

from __future__ import annotations

import importlib.util
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedfeat.config.presets import Cell
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat.report.tables import markdown_table
from fedfeat_reproduction import choices, effects, overview, render
from fedfeat_reproduction.choices import CHOICES, OpenChoice, Variation
from fedfeat_reproduction.figures.overview import draw_overview
from fedfeat_reproduction.records import Record, read_records
from fedfeat_reproduction.results import EARLIER, OTHER_FORMS, RecordIndex, TableRow, other_forms, with_other_forms
from fedfeat_reproduction.sources import CALIBRATE, PredictionName
from fedfeat_reproduction.tables import MAIN, TABLES, PaperEntry, PaperTable

PAGE, SUMMARY = "page", "summary"  # texts of readings.toml that are of no table
SUMMED_UP = ("fedcbdr", "fedcbdr+feat")
NO_READING = "No reading of these figures has been written yet."
CHOICE_COLUMNS = ("choice", "the paper", "ours", "instead", "where", *effects.MEASURES)
PICTURES = Path("images", "paper")  # beside the page
CELLS_PICTURE = f"""![The 24 cells of the main table: FEAT_F as published, our FEAT_F, our recipe; cells that were not
run are empty]({PICTURES / "main-table.svg"})
"""
TRAFFIC_PICTURE = f"""![Accuracy against the bytes that a client sends and receives, for our recipe, FEAT_F and
FedCBDR]({PICTURES / "traffic.svg"})
"""
ABOUT_TRAFFIC = """Numbers beside points are rounds a task. Nearly all bytes are the model, so they grow with the
rounds. Lines join runs on the same images."""
ABOUT_HOLLOW = " Hollow diamonds are runs of the recipe with its earlier settings."
LONG = 6  # numbers, from which on a list of them is shown by its ends


def write_page(results: Path, out: Path) -> list[str]:
    """Write the page and draw its pictures; return what is left out of it, and why."""
    index = RecordIndex(read_records(results), earlier=True)
    if not index.records:
        raise FedfeatError(f"{results}: no record of a run is there; 'fedfeat paper record RUN' writes one")
    write_atomically(out, render_page(index.records, effects.read_measured(results / effects.QUICK_FILE)).encode())
    if importlib.util.find_spec("matplotlib") is None:
        return [*index.unreadable, "pictures of the page: matplotlib is not installed"]
    draw_overview(index, out.parent / PICTURES)
    return index.unreadable


def render_page(records: Sequence[Record], small: effects.MeasuredChoices | None = None) -> str:
    """Return the page as Markdown; ``small`` are effects of choices on the built-in digits."""
    index = RecordIndex(records, earlier=True)
    parts = [read_readings()[PAGE]["head"], *_summary(index)]
    parts += [_table_section(table, index) for table in TABLES.values()]
    parts.append(read_readings()[PAGE]["questions"].lstrip("\n"))
    return "\n".join([*parts, _choices_section(index.records, small), _runs_section(index.records)])


@cache
def read_readings() -> dict[str, dict[str, str]]:
    """Return the hand-written texts: how to read figures, by table and cell, and of the choices."""
    text = resources.files("fedfeat_reproduction").joinpath("readings.toml").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = tomllib.loads(text)
    return found


def missing_readings(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the tables and cells that have figures of ours and no reading."""
    index, written = RecordIndex(records, earlier=True), read_readings()
    return [
        (table.name, cell.name)
        for table in TABLES.values()
        for cell in _cells_with_figures(index.row(entry) for entry in table.entries)
        if cell.name not in written.get(table.name, {})
    ]


def _summary(index: RecordIndex) -> list[str]:
    """Return FEAT_F and what it is built on, wherever one of them was run, and what is to be learned from it."""
    rows = [index.row(entry) for entry in TABLES[MAIN].entries if entry.method in SUMMED_UP]
    cells = _cells_with_figures(rows)
    if not cells:
        return []
    rows = with_other_forms(rows, index)
    shown = render.rows_markdown([row for cell in cells for row in rows if row.entry.cell == cell])
    told = [CELLS_PICTURE, _wrapped(overview.in_words(overview.figures_by_cell(index.today())))]
    text = "\n".join([*told, read_readings()[SUMMARY]["all"].lstrip("\n"), shown])
    points = overview.traffic_points(index)
    about = ABOUT_TRAFFIC + ABOUT_HOLLOW * any(point.accuracy.earlier for point in points)
    traffic = f"\n{TRAFFIC_PICTURE}\n{_wrapped(about)}" if points else ""
    return [f"## In short\n\n{text}{traffic}"]


def _table_section(table: PaperTable, index: RecordIndex) -> str:
    """Return a section per cell of which something was run, and the published values of the others in one grid."""
    rows = [index.row(entry) for entry in table.entries]
    cells = _cells_with_figures(rows)
    text = f"## {table.title}\n\n{_wrapped(f'`{table.name}`: {table.unit}. {table.note}')}"
    text += "".join(_cell_section(table, cell, [r for r in rows if r.entry.cell == cell], index) for cell in cells)
    return text + _not_run(table, [row.entry for row in rows if row.entry.cell not in cells])


def _cell_section(table: PaperTable, cell: Cell, rows: Sequence[TableRow], index: RecordIndex) -> str:
    """Return the paper's rows, in the main table also other forms and methods, the commands and the reading."""
    only = f"{table.name} --only {cell.split},beta{cell.beta:g},k{cell.clients}"
    reading = read_readings().get(table.name, {}).get(cell.name, NO_READING)
    commands = [only]
    if table.name == MAIN:
        methods = _further_methods(cell, rows, index)
        also = f" --also {','.join(methods)}" if methods else ""
        commands = [only + end for end in (also, *_form_options(rows, index))]
        further = [index.row(PaperEntry(method, method, cell, None)) for method in methods]
        rows = [*with_other_forms(rows, index), *further]
    shown = render.rows_markdown(rows, setting=False)
    return f"\n### {cell.title}\n\n{_command(commands, table)}\n{shown}\n{_wrapped(reading)}"


def _form_options(rows: Sequence[TableRow], index: RecordIndex) -> list[str]:
    """Return what ends the command for each row that was run with another form of the correction."""
    return [
        f",{row.entry.method} " + " ".join(f"--set {change}" for change in OTHER_FORMS[form])
        for row in rows
        for form in other_forms(row, index)
    ]


def _further_methods(cell: Cell, rows: Sequence[TableRow], index: RecordIndex) -> list[str]:
    there = {row.entry.method for row in rows}
    methods = {method.removesuffix(CALIBRATE) for _, method in index.by_setting}
    return [m for m in sorted(methods - there) if index.has(cell, m) or index.has(cell, m + CALIBRATE)]


def _not_run(table: PaperTable, entries: Sequence[PaperEntry]) -> str:
    """Return the published values of the cells of which nothing was run, as the paper lays them out."""
    if not entries:
        return ""
    text = f"\n### Not run yet ({table.name})\n\n{_command([table.name], table)}"
    for clients in dict.fromkeys(entry.cell.clients for entry in entries):
        grid = _published_grid([entry for entry in entries if entry.cell.clients == clients])
        text += f"\nPublished, K = {clients}:\n\n{grid}"
    return text


def _published_grid(entries: Sequence[PaperEntry]) -> str:
    rows: dict[str, list[str]] = {}
    for entry in entries:
        rows.setdefault(entry.label, []).append(render.published_text(entry.published))
    columns = dict.fromkeys((e.cell, e.task) for e in entries)
    names = [f"{c.split}, β {c.beta:g}" + (f", task {task}" if task else "") for c, task in columns]
    return markdown_table(["row", *names], ([label, *row] for label, row in rows.items()), 1)


def _cells_with_figures(rows: Iterable[TableRow]) -> list[Cell]:
    return list(dict.fromkeys(row.entry.cell for row in rows if row.ours or row.calibrated))


def _command(runs: Sequence[str], table: PaperTable) -> str:
    calibrate = " --calibrate" if table.entries[0].measure == "accuracy" else ""
    return "```sh\n" + "".join(f"fedfeat paper run {run}{calibrate} --engine cuda\n" for run in runs) + "```\n"


def _choices_section(records: Sequence[Record], small: effects.MeasuredChoices | None) -> str:
    """Return the table of choices with measured effects, their reading, other runs, and effects in small."""
    variations = choices.find_variations(records)
    rows, told = [], []
    for choice in choices.read_choices():
        found = choices.answers(choice, variations)
        told += found
        rows += _choice_rows(choice, found)
    text = f"{read_readings()[PAGE]['choices']}\n{markdown_table(CHOICE_COLUMNS, rows, 5)}"
    if told:
        text += f"\n{_wrapped(read_readings()[CHOICES]['effects'])}"
    others = [["", "", "", *_variation_cells(v)] for v in variations if v not in told]
    if others:
        text += "\nRuns that changed several of these, or something else:\n\n"
        text += markdown_table(CHOICE_COLUMNS, others, 5)
    return text + (quick_choices_section(small) if small else "")


def _choice_rows(choice: OpenChoice, found: Sequence[Variation]) -> list[list[str]]:
    start = [f"{choice.title} (`{choice.name}`)", choice.paper, choice.ours]
    if not found:
        return [[*start, "not measured here", "", "", "", ""]]
    return [[*(start if number == 0 else ("", "", "")), *_variation_cells(v)] for number, v in enumerate(found)]


def _variation_cells(variation: Variation) -> list[str]:
    """Return the change, where it was made, and what it did to the plain, the own and the calibrated prediction."""
    cell, method = variation.cell, variation.varied.method
    where = f"{cell.name}, `{method}`, seed {variation.varied.seed}"
    where += f", both with {changes_text(variation.given, cell, method)}" if variation.given else ""
    calibrated = method.endswith(CALIBRATE)
    predictions: list[PredictionName] = ["plain", "corrected"]
    if calibrated:
        predictions.insert(1, "before calibration")
    points = [f"{variation.effect(prediction):+.2f}" for prediction in predictions]
    return [changes_text(variation.changes, cell, method), where, *points, *[""] * (not calibrated)]


def changes_text(changes: Mapping[str, Any], cell: Cell, method: str) -> str:
    """Return changed settings as a list, in which those that were changed together have one name."""
    told: list[str] = []
    for name, overrides in (("the first settings", choices.FIRST), ("the earlier settings", EARLIER)):
        together = choices.changes_of(overrides, cell, method)
        if len(together) > 1 and together.items() <= changes.items():
            told, changes = [*told, name], {k: v for k, v in changes.items() if k not in together}
    return ", ".join([*told, *(f"`{key} = {_value_text(value)}`" for key, value in changes.items())])


def _value_text(value: Any) -> str:
    """Return a value as text; of a long list of numbers the ends."""
    if isinstance(value, Sequence) and len(value) > LONG and not isinstance(value, str):
        return f"{value[0]:g} ... {value[-1]:g}"
    return str(value)


def quick_choices_section(kept: effects.MeasuredChoices) -> str:
    """Return what the quick runs were, the table, and which effects stand out from their spread."""
    machines = sorted({f"torch {e.get('torch', '?')}, commit {e.get('commit', '?')}" for e in kept.environments})
    budget = kept.setting.get("scenario", {}).get("budget", "?")
    about = read_readings()[PAGE]["quick"].format(
        dataset=kept.dataset, rounds=kept.rounds, budget=budget, machines="; ".join(machines)
    )
    usual = (f"- `{method}`, {render.usual_text(found)}" for method, found in render.by_method(kept.effects).items())
    parts = [_wrapped(about), render.effects_markdown(kept.effects)]
    parts.append("What the effects start from:\n\n" + "".join(_wrapped(line, "  ") for line in usual))
    parts.append(
        "What stands out from its spread:\n\n" + "".join(_outstanding(kept.effects, m) for m in effects.MEASURES)
    )
    parts += _not_measured(kept)
    return f"\n### The same choices on the {kept.dataset}\n\n" + "\n".join(parts)


def _outstanding(measured: Sequence[effects.Effect], measure: effects.Measure) -> str:
    """Return what stands out under a prediction, the largest effect first."""
    found = [(change, effect) for effect in measured if (change := effect.change(measure)) and change.std is not None]
    beyond = sorted((p for p in found if not effects.within_spread(p[0])), key=lambda p: -abs(p[0].mean))
    told = ", ".join(f"`{render.settings_text(effect.changes)}` {change.mean:+.2f}" for change, effect in beyond)
    return _wrapped(f"- {measure}, {len(beyond)} of {len(found)}{': ' if told else ''}{told}", "  ")


def _not_measured(kept: effects.MeasuredChoices) -> list[str]:
    """Name what was not measured, and why."""
    there = [effect.changes for effect in kept.effects]
    left = [a for a in choices.choose_alternatives() if dict(a.changes) not in there]
    quick = choices.ChoiceRuns(quick=True)
    told = [f"`{render.settings_text(a.changes)}` ({quick.objection(a) or 'no pair of runs yet'})" for a in left]
    return [_wrapped(f"Not measured on the {kept.dataset}: {', '.join(told)}.")] if told else []


def _runs_section(records: Sequence[Record]) -> str:
    """Return what was run: where, on what images, with which versions."""
    headings = ("setting", "method", "seed", "final", "not as usual", "images", "hardware", "torch", "commit")
    images = list(dict.fromkeys(r.images for r in records))
    rows = []
    for kept in records:
        cell, environment = choices.cell_of(kept), kept.environment
        rows.append(
            (
                cell.name if cell else kept.dataset,
                f"`{kept.method}`",
                str(kept.seed),
                f"{kept.final_accuracy:.2f}",
                changes_text(choices.changes_in(kept, cell), cell, kept.method) if cell else "",
                f"({images.index(kept.images) + 1})",
                environment.get("gpu") or f"{environment.get('cpus', '?')} CPU cores",
                environment.get("torch", "?"),
                kept.commit,
            )
        )
    legend = "".join(f"- ({number}) {text}\n" for number, text in enumerate(images, 1))
    return f"## Runs\n\n{markdown_table(headings, rows, len(headings))}\nImages:\n\n{legend}"


def _wrapped(text: str, indent: str = "") -> str:
    """Return lines of one width that end in a newline; blank lines part paragraphs, and code stays on one line."""
    whole = re.sub(r"`[^`]*`", lambda code: " ".join(code[0].split()).replace(" ", "\0"), text.strip())
    paragraphs = (
        textwrap.fill(
            " ".join(paragraph.split()), 118, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
        for paragraph in whole.split("\n\n")
    )
    return "\n\n".join(paragraphs).replace("\0", " ") + "\n"
