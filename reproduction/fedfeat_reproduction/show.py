"""A table of the paper beside our figures, as text for a terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedfeat_reproduction.cells import OTHER_FORMS
from fedfeat_reproduction.ours import Figure, Line
from fedfeat_reproduction.published import Value

COLUMNS = ("setting", "row", "method", "published", "ours", "seeds", "diff.", "calibrated", "diff.")
HELD_BACK = "*"
HELD_BACK_NOTE = "* trained without the exemplars that its calibration held back"


def cells_of(line: Line) -> tuple[str, ...]:
    """Return a line as text, one string per column; what is not there is empty."""
    entry = line.entry
    task = f", task {entry.task}" if entry.task else ""
    seeds = dict.fromkeys(str(len(f.values)) for f in (line.ours, line.calibrated) if f)
    return (
        entry.cell.name + task,
        entry.label,
        entry.method,
        published_text(entry.published),
        figure_text(line.ours),
        ", ".join(seeds),
        signed(line.difference),
        figure_text(line.calibrated),
        signed(line.calibrated_difference),
    )


def published_text(value: Value | None) -> str:
    """Return ``70.19 ± 1.8``; empty where the paper has no such number."""
    if value is None:
        return ""
    return f"{value.mean:.2f}" + (f" ± {value.std:.1f}" if value.std is not None else "")


def figure_text(figure: Figure | None) -> str:
    """Return our mean and spread; one seed has no spread."""
    if figure is None:
        return ""
    spread = f" ± {figure.std:.1f}" if figure.std is not None else ""
    return f"{figure.mean:.2f}{spread}{HELD_BACK if figure.held_back else ''}"


def signed(difference: float | None) -> str:
    """Return ``+1.23`` or ``-1.23``."""
    return "" if difference is None else f"{difference:+.2f}"


def notes_of(lines: Sequence[Line]) -> list[str]:
    """Return what must be said below a table."""
    held = [HELD_BACK_NOTE] if any(line.ours and line.ours.held_back for line in lines) else []
    return held + list(dict.fromkeys(_changed_note(line) for line in lines if line.changed))


def _changed_note(line: Line) -> str:
    form = next((f"{form}: " for form in OTHER_FORMS if line.entry.label.endswith(f", {form}")), "")
    return f"{form}ours with {', '.join(line.changed)}"


def to_markdown(lines: Sequence[Line], *, setting: bool = True) -> str:
    """Return a Markdown table; without the setting where a heading above it says so."""
    first = 0 if setting else 1
    rule = ["---" if i < 3 else "---:" for i in range(first, len(COLUMNS))]
    rows = [COLUMNS[first:], rule, *(_code(cells_of(line))[first:] for line in lines)]
    if not setting and any(line.entry.task for line in lines):
        tasks = ["task", "---:", *(str(line.entry.task) for line in lines)]
        rows = [(task, *row) for task, row in zip(tasks, rows, strict=True)]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    return table + "".join(f"\n{_escaped(note)}\n" for note in notes_of(lines))


def _code(cells: tuple[str, ...]) -> tuple[str, ...]:
    return (*cells[:2], f"`{cells[2]}`", *(_escaped(c) for c in cells[3:]))


def _escaped(text: str) -> str:
    return text.replace(HELD_BACK, "\\*")


def to_csv(lines: Sequence[Line]) -> str:
    """Return comma-separated values with full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["setting", "task", "row", "method", "published", "published_std"]
        + [f"{which}_{what}" for which in ("ours", "calibrated") for what in ("mean", "std", "seeds", "difference")]
        + ["held_back", "changed"]
    )
    for line in lines:
        entry = line.entry
        value = entry.published or (None, None)
        ours = (*_numbers(line.ours), line.difference, *_numbers(line.calibrated), line.calibrated_difference)
        held = bool(line.ours and line.ours.held_back)
        place = (entry.cell.name, entry.task, entry.label, entry.method)
        writer.writerow([*place, *value, *ours, held, ", ".join(line.changed)])
    return text.getvalue()


def _numbers(figure: Figure | None) -> tuple[float | None, float | None, int]:
    return (None, None, 0) if figure is None else (figure.mean, figure.std, len(figure.values))


def to_latex(lines: Sequence[Line], caption: str) -> str:
    """Return a LaTeX table that needs the package booktabs."""
    rows = [" & ".join(latex(cell) for cell in cells_of(line)) + r" \\" for line in lines]
    head = " & ".join(latex(c) for c in COLUMNS) + r" \\"
    body = [r"\begin{tabular}{lll" + "r" * (len(COLUMNS) - 3) + "}", r"\toprule", head, r"\midrule", *rows]
    body += [r"\bottomrule", r"\end{tabular}"]
    notes = [rf"\\ \footnotesize {latex(note)}" for note in notes_of(lines)]
    table = [r"\begin{table}", r"\centering", rf"\caption{{{latex(caption)}}}", *body, *notes, r"\end{table}"]
    return "\n".join(table) + "\n"


LATEX = str.maketrans(
    {character: rf"\{character}" for character in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "β": r"$\beta$"}
)


def latex(text: str) -> str:
    """Return text as LaTeX wants it; a negative number is mathematics."""
    written = text.translate(LATEX)
    return f"${written}$" if text.startswith("-") else written
