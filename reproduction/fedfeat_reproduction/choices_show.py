"""Effects of open choices as text: cells for a terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from fedfeat_reproduction.choices_effects import MEASURES, Effect, Measure, within_spread
from fedfeat_reproduction.ours import Figure
from fedfeat_reproduction.show import figure_text, latex

COLUMNS = ("choice", "instead", "method", "seeds", *MEASURES)
NOTE = (
    "effects in points of final accuracy, varied less usual run of the same seed, mean ± standard deviation over "
    "seeds; in parentheses where the mean is no larger than the deviation, 'none' where no run changed"
)
MEANING = "plain: without any correction; own: as the method predicts (EGC where it has it); calibrated: on top of that"


def cells_of(effect: Effect) -> tuple[str, ...]:
    """Return an effect as text, one string per column; what was not run is empty."""
    changes = (change_text(effect.change(measure)) for measure in MEASURES)
    return (effect.choice, settings_text(effect.changes), effect.method, str(len(effect.pairs) or ""), *changes)


def settings_text(changes: Mapping[str, Any]) -> str:
    """Return changed settings as a list."""
    return ", ".join(f"{key} = {value}" for key, value in changes.items())


def change_text(change: Figure | None) -> str:
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
    told = Effect(choice="", changes={}, method="", pairs=[pairs[seed] for seed in sorted(pairs)])
    figures: dict[Measure, Figure | None] = {measure: told.usual(measure) for measure in MEASURES}
    shown = ", ".join(f"{measure} {figure_text(figure)}" for measure, figure in figures.items() if figure)
    return f"usual run: {shown} (seed{'s' * (len(pairs) > 1)} {', '.join(str(seed) for seed in sorted(pairs))})"


def by_method(effects: Sequence[Effect]) -> dict[str, list[Effect]]:
    """Return effects by the method they were measured on."""
    found: dict[str, list[Effect]] = {}
    for effect in effects:
        found.setdefault(effect.method, []).append(effect)
    return found


def to_markdown(effects: Sequence[Effect]) -> str:
    """Return a Markdown table."""
    rows = [COLUMNS, ("---",) * 3 + ("---:",) * (len(COLUMNS) - 3)]
    for effect in effects:
        name, changes, method, *numbers = cells_of(effect)
        rows.append((f"`{name}`", f"`{changes}`", f"`{method}`", *numbers))
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def to_csv(effects: Sequence[Effect], where: str) -> str:
    """Return comma-separated values with full precision; ``where`` is what the runs share."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"{measure}_{what}" for measure in MEASURES for what in ("usual", "effect", "effect_std")]
    writer.writerow([*COLUMNS[:4], *numbers, "where"])
    for effect in effects:
        values: list[float | None] = []
        for measure in MEASURES:
            usual, change = effect.usual(measure), effect.change(measure)
            if usual is not None and change is not None:
                values += [usual.mean, change.mean, change.std]
            else:
                values += [None] * 3
        writer.writerow([*cells_of(effect)[:3], len(effect.pairs), *values, where])
    return text.getvalue()


def to_latex(effects: Sequence[Effect], caption: str) -> str:
    """Return a LaTeX table that needs the package booktabs."""
    rows = [" & ".join(_latex(cell) for cell in cells_of(effect)) + r" \\" for effect in effects]
    body = [r"\begin{tabular}{lllrrrr}", r"\toprule", " & ".join(COLUMNS) + r" \\", r"\midrule", *rows]
    body += [r"\bottomrule", r"\end{tabular}", rf"\\ \footnotesize {_latex(NOTE)}"]
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{_latex(caption)}}}", *body, r"\end{table}"]) + "\n"


def _latex(text: str) -> str:
    if text.lstrip("(").startswith(("+", "-")):  # an effect: its signs are mathematics
        return f"${text.replace('±', chr(92) + 'pm')}$"
    return latex(text)
