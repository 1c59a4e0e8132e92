"""``fedfeat paper run choices`` and ``fedfeat paper show choices``: what other answers than ours are worth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedfeat.cli.paper_tables import WIDE, Format, say_left_out
from fedfeat.cli.progress import finish_all
from fedfeat.runs.sweep import RunOutcome, RunPool, plan
from fedfeat_reproduction.choices import answers, find_variations, read_choices
from fedfeat_reproduction.choices_effects import Effect, effect_of, find_pairs, shelves
from fedfeat_reproduction.choices_record import measured, write_measured
from fedfeat_reproduction.choices_runs import CELL, TITLE, Protocol, choose_alternatives
from fedfeat_reproduction.choices_show import (
    COLUMNS,
    MEANING,
    NOTE,
    by_method,
    cells_of,
    settings_text,
    to_csv,
    to_latex,
    to_markdown,
    usual_text,
)
from fedfeat_reproduction.records import Record


def run_choices(
    only: str, protocol: Protocol, seeds: Sequence[int], folder: Path, pool: RunPool, console: Console
) -> list[RunOutcome]:
    """Run what is missing of the usual experiment and its variations."""
    wanted = [a for a in choose_alternatives(only) if protocol.objection(a) is None]
    return finish_all(plan(protocol.configs(wanted, seeds), folder), console, pool=pool)


def show_choices(only: str, protocol: Protocol, records: Sequence[Record], format: Format, console: Console) -> None:
    """Print the effects that runs and records show; say what was left out, and why."""
    among = shelves(records)
    left_out = [reason for shelf in among for reason in shelf.strange]
    effects = []
    for alternative in choose_alternatives(only):
        objection = protocol.objection(alternative)
        if objection is None:
            effects.append(effect_of(alternative, protocol, find_pairs(alternative, protocol, among)))
        else:
            left_out.append(f"{settings_text(alternative.changes)}: {objection}")
    print_effects(effects, protocol, format, console)
    if format is Format.terminal and not protocol.overrides and not protocol.quick:
        known = [kept for shelf in among for kept in shelf.records]
        for settings, pairs in sorted(pairs_elsewhere(known).items()):
            console.print(f"{pairs} more where both runs have {settings}: add --set {settings}")
    say_left_out(left_out)


def pairs_elsewhere(records: Sequence[Record]) -> Counter[str]:
    """Return how many pairs for our choices were run with a setting that is not the usual one, by that setting."""
    found: Counter[str] = Counter()
    variations = find_variations(records)
    for choice in read_choices():
        for pair in answers(choice, variations):
            if pair.cell == CELL and pair.varied.method == choice.method and len(pair.given) == 1:
                found.update(f"{key}={json.dumps(value)}" for key, value in pair.given.items())
    return found


def count_effects(records: Sequence[Record]) -> tuple[int, int]:
    """Return how many other answers there are, and of how many there is a pair of runs."""
    alternatives, protocol, among = choose_alternatives(), Protocol(), shelves(records)
    return len(alternatives), sum(bool(find_pairs(a, protocol, among)) for a in alternatives)


def print_effects(effects: Sequence[Effect], protocol: Protocol, format: Format, console: Console) -> None:
    """Print effects; on a terminal with a heading per method and the notes."""
    if format is Format.terminal:
        console.print(TITLE, style="bold")
        for method, found in by_method(effects).items():
            console.print(f"\n{method}, {protocol.where}\n{usual_text(found)}")
            console.print(_terminal(found, console.width >= WIDE))
        console.print()
        for note in (NOTE, MEANING):
            console.print(note, style="dim")
        return
    if format is Format.latex:
        print(to_latex(effects, f"{TITLE} ({protocol.where})"), end="")
        return
    if format is Format.markdown:
        print(f"{to_markdown(effects)}\n{protocol.where}")
        return
    print(to_csv(effects, protocol.where), end="")


def record_effects(path: Path, protocol: Protocol, records: Sequence[Record], console: Console) -> None:
    """Write every effect there is into one file."""
    write_measured(measured(protocol, records), path)
    console.print(str(path))


def _terminal(effects: Sequence[Effect], wide: bool) -> Table:
    """Return the effects on one method; a narrow terminal does without the names of choices."""
    kept = [i for i, name in enumerate(COLUMNS) if name != "method" and (wide or name != "choice")]
    table = Table(*(COLUMNS[i] for i in kept), box=None, pad_edge=False)
    for column in table.columns[-4:]:
        column.justify, column.no_wrap = "right", True
    for effect in effects:
        cells = cells_of(effect)
        table.add_row(*(cells[i] for i in kept))
    return table
