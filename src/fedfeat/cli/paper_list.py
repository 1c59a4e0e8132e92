"""What ``fedfeat paper list`` prints: our numbers, the runs that are left, and what they cost; or a queue of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from fedfeat.cli.paper_output import Place, say_left_out
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat.report.tables import terminal_table
from fedfeat.runs.identity import identity
from fedfeat_reproduction import choices, missing
from fedfeat_reproduction.experiments import refuse_fixed
from fedfeat_reproduction.figures import FIGURES
from fedfeat_reproduction.tables import TABLES


@dataclass(frozen=True)
class Asked:
    """What the list is of: names, and what ``fedfeat paper run`` would be told for them."""

    names: Sequence[str] = ()
    seeds: Sequence[int] = ()
    only: str = ""
    calibrate: bool = False
    changed: Sequence[str] = ()

    def needed(self, place: Place) -> tuple[list[missing.Needed], missing.Costs]:
        """Return what is there and what is left; what chooses among entries or changes them is for tables alone."""
        tables, others = missing.entries_by_name(), [*FIGURES, choices.CHOICES]
        names = self.names
        for name in names:
            if name not in tables and name not in others:
                raise FedfeatError(f"{name}: no such table or figure; {nearest(name, [*tables, *others])}")
            refuse_fixed(name, self.changed, has_cells=name in tables)
        special = bool(self.only or self.calibrate or self.changed)
        if special and not (names and set(names) <= set(tables)):
            raise FedfeatError(
                f"--only, --calibrate, --recipe and --set are for tables; name some of {', '.join(tables)} with them"
            )
        index = place.index(self.changed)
        if special:
            found = [n for name in names for n in missing.chosen(name, index, self.seeds, self.only, self.calibrate)]
        else:
            found = [n for n in missing.needed(index, place.results, self.seeds) if not names or n.name in names]
        return found, missing.Costs(index.records)


def print_list(place: Place, asked: Asked, console: Console) -> None:
    """Print tables, figures and choices, then the cells of tables: numbers, those of ours, and what is left to run."""
    needs, costs = asked.needed(place)
    by_name = {need.name: [other for other in needs if other.name == need.name] for need in needs}
    rows = [[name, *_left(parts, costs), _title(name)] for name, parts in by_name.items()]
    several = f"each run once, {len(asked.seeds)} seed{'s' * (len(asked.seeds) > 1)}"
    rows.append(["together", *_left(needs, costs), several])
    columns = ("numbers", "ours", "runs left", "GPU min")
    console.print(terminal_table(("name", *columns, "what"), rows, 6))
    for name, parts in by_name.items():
        cells = [[n.cell, *_left([n], costs), ", ".join(n.missing) if n.ours else "all"] for n in parts if n.cell]
        if cells:
            console.print(f"\n{name}")
            table = terminal_table(("cell", *columns, "no number yet"), cells, 6)
            table.columns[0].no_wrap = True  # its end tells cells apart
            console.print(table)
    console.print(f"\n{missing.NOTE}", style="dim")
    say_left_out([reason for need in needs for reason in need.refused])


def print_queue(place: Place, asked: Asked) -> None:
    """Print what is left to run as lines for ``fedfeat queue``."""
    needs, costs = asked.needed(place)
    for line in missing.queue_lines(needs, costs, asked.seeds):
        print(line)
    say_left_out([reason for need in needs for reason in need.refused])


def _left(needs: Sequence[missing.Needed], costs: missing.Costs) -> list[str]:
    """Return numbers of the paper and of ours, different runs that are left, and their minutes, as text."""
    runs = {identity(config): config for need in needs for config in need.runs}
    counts = (sum(need.numbers for need in needs), sum(need.ours for need in needs))
    return [*map(str, counts), str(len(runs) or ""), missing.minutes(costs.total(runs.values()))]


def _title(name: str) -> str:
    if name == choices.CHOICES:
        return choices.TITLE
    if name == missing.OURS:
        return "Our recommended recipe in the cells of the main table; --queue prints its runs"
    return TABLES[name].title if name in TABLES else FIGURES[name].title
