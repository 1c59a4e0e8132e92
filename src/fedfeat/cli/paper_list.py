"""What ``fedfeat paper list`` prints: our numbers, the runs that are left, and what they cost; or a queue of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from fedfeat.cli.paper_output import Place, checked_kind, say_left_out
from fedfeat.report.tables import terminal_table
from fedfeat.runs.identity import identity
from fedfeat_reproduction import choices, missing
from fedfeat_reproduction.figures import FIGURES
from fedfeat_reproduction.tables import TABLES


def print_list(place: Place, names: Sequence[str], seeds: Sequence[int], console: Console) -> None:
    """Print tables, figures and choices, then the cells of tables: numbers, those of ours, and what is left to run."""
    needs, costs = _needed(place, names, seeds)
    by_name = {need.name: [other for other in needs if other.name == need.name] for need in needs}
    rows = [[name, *_left(parts, costs), _title(name)] for name, parts in by_name.items()]
    rows.append(["together", *_left(needs, costs), f"each run once, {len(seeds)} seed{'s' * (len(seeds) > 1)}"])
    columns = ("numbers", "ours", "runs left", "GPU min")
    console.print(terminal_table(("name", *columns, "what"), rows, 6))
    for name, parts in by_name.items():
        cells = [[n.cell, *_left([n], costs), ", ".join(n.missing) if n.ours else "all"] for n in parts if n.cell]
        if cells:
            console.print(f"\n{name}")
            console.print(terminal_table(("cell", *columns, "no number yet"), cells, 6))
    console.print(f"\n{missing.NOTE}", style="dim")
    say_left_out([reason for need in needs for reason in need.refused])


def print_queue(place: Place, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Print what is left to run as lines for ``fedfeat queue``."""
    needs, costs = _needed(place, names, seeds)
    for line in missing.queue_lines(needs, costs, seeds):
        print(line)
    say_left_out([reason for need in needs for reason in need.refused])


def _needed(place: Place, names: Sequence[str], seeds: Sequence[int]) -> tuple[list[missing.Needed], missing.Costs]:
    for name in names:
        checked_kind(name, ())
    index = place.index()
    found = missing.needed(index, place.results, seeds)
    return [need for need in found if not names or need.name in names], missing.Costs(index.records)


def _left(needs: Sequence[missing.Needed], costs: missing.Costs) -> list[str]:
    """Return numbers of the paper and of ours, different runs that are left, and their minutes, as text."""
    runs = {identity(config): config for need in needs for config in need.runs}
    counts = (sum(need.numbers for need in needs), sum(need.ours for need in needs))
    return [*map(str, counts), str(len(runs) or ""), missing.minutes(costs.total(runs.values()))]


def _title(name: str) -> str:
    if name == choices.CHOICES:
        return choices.TITLE
    return TABLES[name].title if name in TABLES else FIGURES[name].title
