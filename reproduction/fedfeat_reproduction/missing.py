"""What is left to run of tables, figures and choices, and what that would cost on the GPU of the records."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedfeat.config.config import Config, differing_keys, make_config
from fedfeat.config.presets import PRESETS, Cell
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat.data.load import find_dataset
from fedfeat.methods import compose
from fedfeat.runs.identity import deciding_settings, identity
from fedfeat_reproduction import choices, effects, recommended
from fedfeat_reproduction.experiments import TableRuns, engine_overrides
from fedfeat_reproduction.figures import FIGURES, PaperFigure, experiments_of
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.results import RecordIndex
from fedfeat_reproduction.tables import MAIN, TABLES, PaperEntry, select

TRAINING_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "tiny-imagenet": 25_000}
# What runs share, from the nearest to any: the first kind of which there is a record tells what a run takes.
KINDS = (("cell", "method", "work"), ("cell", "method"), ("split", "method"), ("cell",), ("split",), ("data",), ())
NOTE = (
    "GPU minutes are of the machine of the records. ~ marks an estimate: no run of the same cell, method and length is "
    "recorded, so others are scaled by the pixels that are trained on; what a method does besides, such as making "
    "images, is known only where it was recorded."
)
OURS = "recipe"  # the recommended recipe in the cells of the main table
MARGIN = 1.05  # of a queue, beyond what a run is reckoned to take


class Cost(NamedTuple):
    """Seconds on the GPU of the records; an estimate unless the same method was recorded there, as long."""

    seconds: float
    estimated: bool


@dataclass(frozen=True)
class Needed:
    """A cell of a table, a figure or the choices: how many numbers it has, how many are ours, which runs are left."""

    name: str
    cell: str
    numbers: int
    ours: int
    missing: tuple[str, ...]  # numbers without one of ours, by the paper's names
    runs: tuple[Config, ...]
    refused: tuple[str, ...] = ()  # why some cannot be run here


class Costs:
    """What runs take, from what recorded ones took: in proportion to the pixels that are trained on."""

    def __init__(self, records: Iterable[Record]) -> None:
        on_gpu = [kept for kept in records if kept.environment.get("gpu") and kept.seconds]
        overheads = [kept.wall_seconds / kept.seconds for kept in on_gpu if kept.wall_seconds]
        overhead = statistics.median(overheads) if overheads else 1.0
        self.known: list[tuple[dict[str, Any], float]] = []
        for kept in on_gpu:
            about = _about(kept.parsed_config())
            self.known.append((about, (kept.wall_seconds or overhead * kept.seconds) / about["work"]))

    def of(self, config: Config) -> Cost | None:
        """Return what a run would take; None where nothing was recorded on a GPU."""
        wanted = _about(config)
        for kind in KINDS:
            rates = [rate for about, rate in self.known if all(about[key] == wanted[key] for key in kind)]
            if rates:
                return Cost(statistics.median(rates) * wanted["work"], kind != KINDS[0])
        return None

    def total(self, runs: Iterable[Config]) -> Cost | None:
        """Return what runs take together."""
        costs = [self.of(config) for config in runs]
        known = [cost for cost in costs if cost is not None]
        return (
            Cost(sum(c.seconds for c in known), any(c.estimated for c in known)) if len(known) == len(costs) else None
        )


def _about(config: Config) -> dict[str, Any]:
    scenario, data = config.scenario, config.data.name
    shape, tasks = find_dataset(data).shape or (1, 1, 1), scenario.tasks
    images = TRAINING_IMAGES.get(data, 1) + _replays(config.method) * scenario.budget * tasks * (tasks - 1) // 2
    cell = Cell(data, tasks, scenario.beta, scenario.clients)
    return {
        "data": data,
        "split": cell.split,
        "cell": cell.name,
        "method": config.method,
        "work": config.train.rounds * config.train.local_epochs * images * shape[0] * shape[1],
    }


@cache
def _replays(method: str) -> bool:
    try:
        return compose(method, {}).replay is not None
    except FedfeatError:
        return True  # its settings are not at hand; what stands first in a name is a base that replays


def entries_by_name() -> dict[str, tuple[PaperEntry, ...]]:
    """Return the numbers of every table, and those of our recipe, which are in no table of the paper."""
    cells = dict.fromkeys(entry.cell for entry in TABLES[MAIN].entries)
    ours = tuple(PaperEntry(recommended.NAME, recommended.METHOD, cell, None) for cell in cells)
    return {**{name: table.entries for name, table in TABLES.items()}, OURS: ours}


def needed(index: RecordIndex, results: Path, seeds: Sequence[int]) -> Iterator[Needed]:
    """Yield what is there and left, for every cell of every table and of our recipe, every figure, and the choices."""
    for name in entries_by_name():
        yield from chosen(name, index, seeds)
    for figure in FIGURES.values():
        yield _of_figure(figure, index, results, seeds)
    yield _of_choices(index, seeds)


def chosen(
    name: str, index: RecordIndex, seeds: Sequence[int], only: str = "", calibrate: bool = False
) -> Iterator[Needed]:
    """Yield the same for the entries of a table that ``only`` names, with the settings that the index is read for."""
    if name == OURS:
        index = index.with_settings((*recommended.SETTINGS, *index.overrides))
    entries = select(entries_by_name()[name], only)
    for cell in dict.fromkeys(entry.cell for entry in entries):
        yield _of_cell(name, [entry for entry in entries if entry.cell == cell], index, seeds, calibrate)


def _of_cell(
    name: str, entries: Sequence[PaperEntry], index: RecordIndex, seeds: Sequence[int], calibrate: bool
) -> Needed:
    there = {entry: index.seeds(entry, calibrated=calibrate) for entry in entries}
    runs: list[Config] = []
    refused: dict[str, None] = {}
    for seed in seeds:
        left = [entry for entry in entries if seed not in there[entry]]
        try:
            found, reasons = TableRuns((seed,), calibrate=calibrate, overrides=index.overrides).configs(left)
        except FedfeatError as error:
            found, reasons = [], [str(error)]
        runs += found
        refused |= dict.fromkeys(reasons)
    without = dict.fromkeys(entry.label for entry in entries if not there[entry])
    ours = sum(map(bool, there.values()))
    return Needed(name, entries[0].cell.name, len(entries), ours, tuple(without), tuple(runs), tuple(refused))


def drawn_numbers(figure: PaperFigure, results: Path) -> Path:
    """Return where the numbers of a figure lie that was made of real runs."""
    return results / "figures" / f"{figure.name}.json"


def _of_figure(figure: PaperFigure, index: RecordIndex, results: Path, seeds: Sequence[int]) -> Needed:
    """Return what a figure needs; models are in no record, so what is drawn from them is run unless it was drawn."""
    if drawn_numbers(figure, results).is_file():
        return Needed(figure.name, "", 1, 1, (), ())
    runs = experiments_of(figure, False, seeds)
    left = tuple(config for config in runs if config.run.keep_models or not index.knows(config))
    return Needed(figure.name, "", 1, 0 if left else 1, (), left)


def _of_choices(index: RecordIndex, seeds: Sequence[int]) -> Needed:
    shared, among = choices.ChoiceRuns(), effects.indices(index.records)
    alternatives = [a for a in choices.choose_alternatives() if shared.objection(a) is None]
    without = [a for a in alternatives if not effects.find_pairs(a, shared, among)]
    left = tuple(config for config in shared.configs(alternatives, seeds) if not index.knows(config))
    names = tuple(dict.fromkeys(a.choice.name for a in without))
    return Needed(choices.CHOICES, "", len(alternatives), len(alternatives) - len(without), names, left)


def queue_lines(needs: Sequence[Needed], costs: Costs, seeds: Sequence[int]) -> Iterator[str]:
    """Yield lines for ``fedfeat queue``, each run once: the first seed of everything before the second of anything."""
    told: set[str] = set()
    for seed in seeds:
        for need in needs:
            lines = []
            for config in need.runs:
                if config.seed == seed and identity(config) not in told:
                    told.add(identity(config))
                    lines.append(_queue_line(config, costs.of(config)))
            if lines:
                yield f"# {' '.join([need.name, need.cell]).strip()}, seed {seed}"
                yield from lines


def _queue_line(config: Config, cost: Cost | None) -> str:
    """Return the seconds and the command: the preset of the data set and tasks, and all that is not as there."""
    preset = f"{config.data.name.removesuffix('-imagenet')}-{config.scenario.tasks}"
    recipe = [] if config.recipe is None else [f"recipe={json.dumps(config.recipe)}"]
    start = make_config(PRESETS[preset].table(), [f"method={config.method}", *recipe])
    ours, theirs = deciding_settings(config, without=("engine",)), deciding_settings(start, without=("engine",))
    values = flatten(ours)
    changes = [f"method={config.method}", *(f"{k}={json.dumps(values.get(k))}" for k in differing_keys(ours, theirs))]
    if config.run.keep_models:
        changes.append("run.keep_models=true")
    words = [] if config.recipe is None else ["--recipe", config.recipe]
    words += [word for change in (*engine_overrides("cuda", None), *changes) for word in ("--set", change)]
    seconds = 600 if cost is None else 5 * math.ceil(MARGIN * cost.seconds / 5)
    return f"{seconds} {shlex.join(['run', preset, *words])}"


def minutes(cost: Cost | None) -> str:
    """Return GPU minutes as text; ``~`` marks an estimate."""
    return "?" if cost is None else f"{'~' * cost.estimated}{cost.seconds / 60:.0f}" if cost.seconds else ""
