"""Tables of the paper and effects of choices as text: cells, Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedfeat.report.tables import csv_table, latex_table, markdown_table, markdown_text
from fedfeat_reproduction.effects import MEASURES, Effect, within_spread
from fedfeat_reproduction.results import EARLIER, OTHER_FORMS, SeedMean, TableRow
from fedfeat_reproduction.tables import Value

COLUMNS = ("setting", "row", "method", "published", "ours", "seeds", "diff.", "calibrated", "diff.")
WORDS = 3  # the columns before the numbers, here and of effects
HELD_OUT_NOTE = "* trained without the exemplars that its calibration held out"
EARLIER_NOTE = f"† with the earlier settings: {', '.join(EARLIER)}"

EFFECT_COLUMNS = ("choice", "instead", "method", "seeds", *MEASURES)
EFFECT_NOTE = (
    "effects in points of final accuracy, varied less usual run of the same seed, mean ± standard deviation over "
    "seeds; in parentheses where the mean is no larger than the deviation, 'none' where no run changed"
)
EFFECT_MEANING = (
    "plain: without any correction; own: as the method predicts (EGC where it has it); calibrated: on top of that"
)


def row_cells(row: TableRow) -> tuple[str, ...]:
    """Return a row as text, one string per column; what is not there is empty."""
    entry = row.entry
    task = f", task {entry.task}" if entry.task else ""
    seeds = dict.fromkeys(str(len(f.values)) for f in (row.ours, row.calibrated) if f)
    return (
        entry.cell.name + task,
        entry.label,
        entry.method,
        published_text(entry.published),
        mean_text(row.ours),
        ", ".join(seeds),
        _signed(row.difference),
        mean_text(row.calibrated),
        _signed(row.calibrated_difference),
    )


def published_text(value: Value | None) -> str:
    """Return ``70.19 ± 1.8``; empty where the paper has no such number."""
    if value is None:
        return ""
    return f"{value.mean:.2f}" + (f" ± {value.std:.1f}" if value.std is not None else "")


def mean_text(figure: SeedMean | None) -> str:
    """Return our mean and spread, none of one seed; marks say what the notes below a table explain."""
    if figure is None:
        return ""
    return published_text(Value(figure.mean, figure.std)) + "*" * figure.held_out + "†" * figure.earlier


def _signed(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+.2f}"


def notes_of(rows: Sequence[TableRow]) -> list[str]:
    """Return what must be said below a table."""
    held_out = [HELD_OUT_NOTE] if any(row.ours and row.ours.held_out for row in rows) else []
    earlier = [EARLIER_NOTE] if any(f and f.earlier for row in rows for f in (row.ours, row.calibrated)) else []
    return held_out + earlier + list(dict.fromkeys(_changed_note(row) for row in rows if row.changed))


def _changed_note(row: TableRow) -> str:
    form = next((f"{form}: " for form in OTHER_FORMS if row.entry.label.endswith(f", {form}")), "")
    return f"{form}ours with {', '.join(row.changed)}"


def rows_markdown(rows: Sequence[TableRow], *, setting: bool = True) -> str:
    """Return a Markdown table; without the setting where a heading above it says so."""
    headings, words = list(COLUMNS), WORDS
    cells = []
    for row in rows:
        place, label, method, *numbers = row_cells(row)
        cells.append([place, label, f"`{method}`", *map(markdown_text, numbers)])
    if not setting:
        of_tasks = any(row.entry.task for row in rows)
        headings, words = ["task"] * of_tasks + headings[1:], WORDS - 1 + of_tasks
        cells = [[str(row.entry.task)] * of_tasks + line[1:] for row, line in zip(rows, cells, strict=True)]
    notes = (f"\n{markdown_text(note)}\n" for note in notes_of(rows))
    return markdown_table(headings, cells, words) + "".join(notes)


def rows_csv(rows: Sequence[TableRow]) -> str:
    """Return comma-separated values with full precision."""
    headings = ["setting", "task", "row", "method", "published", "published_std"]
    headings += [
        f"{which}_{what}" for which in ("ours", "calibrated") for what in ("mean", "std", "seeds", "difference")
    ]
    lines = []
    for row in rows:
        entry = row.entry
        place = (entry.cell.name, entry.task, entry.label, entry.method, *(entry.published or (None, None)))
        ours = (*_numbers(row.ours), row.difference, *_numbers(row.calibrated), row.calibrated_difference)
        figures = [figure for figure in (row.ours, row.calibrated) if figure]
        marks = (bool(row.ours and row.ours.held_out), any(figure.earlier for figure in figures))
        lines.append([*place, *ours, *marks, ", ".join(row.changed)])
    return csv_table([*headings, "held_back", "earlier", "changed"], lines)


def _numbers(figure: SeedMean | None) -> tuple[float | None, float | None, int]:
    return (None, None, 0) if figure is None else (figure.mean, figure.std, len(figure.values))


def rows_latex(rows: Sequence[TableRow], caption: str) -> str:
    """Return a LaTeX table."""
    return latex_table(COLUMNS, map(row_cells, rows), WORDS, caption, notes_of(rows))


def effect_cells(effect: Effect) -> tuple[str, ...]:
    """Return an effect as text, one string per column; what was not run is empty."""
    changes = (change_text(effect.change(measure)) for measure in MEASURES)
    return (effect.choice, settings_text(effect.changes), effect.method, str(len(effect.pairs) or ""), *changes)


def settings_text(changes: Mapping[str, Any]) -> str:
    """Return changed settings as a list."""
    return ", ".join(f"{key} = {value}" for key, value in changes.items())


def change_text(change: SeedMean | None) -> str:
    """Return ``-5.00 ± 1.20``; in parentheses where the mean is within the spread; one seed has no spread."""
    if change is None:
        return ""
    if not any(change.values):
        return "none"
    if change.std is None:
        return f"{change.mean:+.2f}"
    text = f"{change.mean:+.2f} ± {change.std:.2f}"
    return f"({text})" if within_spread(change) else text


def usual_text(effects: Sequence[Effect]) -> str:
    """Return the accuracies of the usual runs behind effects of one method, each seed once."""
    pairs = {pair.seed: pair for effect in effects for pair in effect.pairs}
    if not pairs:
        return "no pair of runs yet"
    seeds = sorted(pairs)
    of_all = Effect(choice="", changes={}, method="", pairs=[pairs[seed] for seed in seeds])
    shown = ", ".join(f"{m} {mean_text(figure)}" for m in MEASURES if (figure := of_all.usual(m)))
    return f"usual run: {shown} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"


def by_method(effects: Sequence[Effect]) -> dict[str, list[Effect]]:
    """Return effects by the method they were measured on."""
    found: dict[str, list[Effect]] = {}
    for effect in effects:
        found.setdefault(effect.method, []).append(effect)
    return found


def effects_markdown(effects: Sequence[Effect]) -> str:
    """Return a Markdown table."""
    cells = map(effect_cells, effects)
    return markdown_table(EFFECT_COLUMNS, ([*(f"`{c}`" for c in line[:WORDS]), *line[WORDS:]] for line in cells), WORDS)


def effects_csv(effects: Sequence[Effect], where: str) -> str:
    """Return comma-separated values with full precision; ``where`` is what the runs share."""
    numbers = [f"{measure}_{what}" for measure in MEASURES for what in ("usual", "effect", "effect_std")]
    lines = []
    for effect in effects:
        values: list[float | None] = []
        for measure in MEASURES:
            usual, change = effect.usual(measure), effect.change(measure)
            values += [usual.mean, change.mean, change.std] if usual and change else [None] * 3
        lines.append([*effect_cells(effect)[:WORDS], len(effect.pairs), *values, where])
    return csv_table([*EFFECT_COLUMNS[:4], *numbers, "where"], lines)


def effects_latex(effects: Sequence[Effect], caption: str) -> str:
    """Return a LaTeX table."""
    return latex_table(EFFECT_COLUMNS, map(effect_cells, effects), WORDS, caption, [EFFECT_NOTE])
