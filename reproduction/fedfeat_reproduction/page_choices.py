"""The section of the reproduction page on what the paper does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedfeat.config.presets import Cell
from fedfeat_reproduction.choices import Choice, Variation, answers, earlier_changes, find_variations, read_choices
from fedfeat_reproduction.choices_record import MeasuredChoices
from fedfeat_reproduction.page_choices_small import small_section
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.sources import CALIBRATE, Prediction

INTRO = """## What the paper does not say

Choices that a program must make and the paper leaves open. The effect is that of the setting shown instead of ours, in
points of final accuracy, read from two runs of the same cell, method and seed that differ in it alone: on the plain
prediction, on the method's own (EGC where it has one), and on the calibrated one. This runs what is missing of all
pairs, or with `--only momentum,logits` of some; `fedfeat paper show choices` prints means over seeds. Both take
`--set train.rounds=20` for pairs of shorter runs. *The earlier settings* are those of the first runs: `model.init =
kaiming`, `fedcbdr.mode = paper`, `calibrate.held_out = 0.2`, and offsets of a linear classifier up to 10 only.

```sh
fedfeat paper run choices --engine cuda
```
"""
LONG = 6  # numbers, from which on a row of them is shown by its ends
HEAD = (
    "| choice | the paper | ours | instead | where | plain | own | calibrated |\n|---|---|---|---|---|---:|---:|---:|\n"
)


def choices_section(records: Sequence[Record], small: MeasuredChoices | None = None, reading: str = "") -> str:
    """Return the table of choices with measured effects, their reading, other runs, and effects in small."""
    variations = find_variations(records)
    choices = read_choices()
    text = INTRO + "\n" + HEAD + "".join(_rows(choice, answers(choice, variations)) for choice in choices)
    told = [v for choice in choices for v in answers(choice, variations)]
    if told and reading:
        text += f"\n{reading}\n"
    others = [v for v in variations if v not in told]
    if others:
        text += "\nRuns that changed several of these, or something else:\n\n" + HEAD
        text += "".join(_row("", "", "", v) for v in others)
    return text + (small_section(small) if small else "")


def _rows(choice: Choice, found: Sequence[Variation]) -> str:
    start = (f"{choice.title} (`{choice.name}`)", choice.paper, choice.ours)
    if not found:
        return f"| {' | '.join(start)} | not measured here | | | | |\n"
    return "".join(_row(*(start if i == 0 else ("", "", "")), v) for i, v in enumerate(found))


def _row(title: str, paper: str, ours: str, variation: Variation) -> str:
    cell, method = variation.cell, variation.varied.method
    changes = changes_text(variation.changes, cell, method)
    where = f"{cell.name}, `{method}`, seed {variation.varied.seed}"
    where += f", both with {changes_text(variation.given, cell, method)}" if variation.given else ""
    effects = _effects(variation)
    return "| " + " | ".join((title, paper, ours, changes, where, *effects)) + " |\n"


def changes_text(changes: Mapping[str, Any], cell: Cell, method: str) -> str:
    """Return changed settings as a list, in which those of the first runs have one name."""
    earlier = earlier_changes(cell, method)
    told = []
    if len(earlier) > 1 and earlier.items() <= changes.items():
        told, changes = ["the earlier settings"], {k: v for k, v in changes.items() if k not in earlier}
    return ", ".join([*told, *(f"`{key} = {_value_text(value)}`" for key, value in changes.items())])


def _value_text(value: Any) -> str:
    """Return a value as text; of a long row of numbers the ends."""
    if isinstance(value, Sequence) and len(value) > LONG and not isinstance(value, str):
        return f"{value[0]:g} ... {value[-1]:g}"
    return str(value)


def _effects(variation: Variation) -> list[str]:
    """Return the effects on the plain, the method's own and the calibrated prediction; empty where there is none."""
    calibrated = variation.varied.method.endswith(CALIBRATE)
    own: Prediction = "before calibration" if calibrated else "corrected"
    values = [variation.effect("plain"), variation.effect(own)]
    return [f"{v:+.2f}" for v in values] + [f"{variation.effect('corrected'):+.2f}" if calibrated else ""]
