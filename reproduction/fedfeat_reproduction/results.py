"""Our results beside the published ones: records sorted into cells, averaged over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from fedfeat.algorithm.registry import parts_of
from fedfeat.config.config import Config, parse_config
from fedfeat.config.presets import Cell
from fedfeat.config.renamed import as_recorded
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat.runs.identity import COMPUTATION, changed_settings
from fedfeat_reproduction.experiments import deciding_overrides, settings
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.sources import (
    CALIBRATE,
    FigureSource,
    after_tasks,
    can_calibrate,
    is_calibrated,
    matrix,
    numbers_sent,
    sources,
    trained_as,
)
from fedfeat_reproduction.tables import PaperEntry

# Other forms of a prediction, by the words that follow a row's name: the abstract speaks of removing a component, the
# formula also adds one; the energies are to be divided by the rank, and are divided by one less.
OTHER_FORMS: Mapping[str, tuple[str, ...]] = {
    "removing alone": ("feat.egc.tail_boost=false",),
    "removing alone, by rank": ("feat.egc.rank_norm=true_rank", "feat.egc.tail_boost=false"),
}
# What cells had before these became the defaults: their figures are shown, with a mark, until there are new ones.
EARLIER: tuple[str, ...] = (
    "feat.egc.prior_order=kept",
    "fedcbdr.scale_logits=false",
    "calibrate.redraw=true",
    "calibrate.negative=false",
    "calibrate.least=1",
    "calibrate.rule=accuracy",
)
RECIPE_EARLIER: tuple[str, ...] = ("data.trivial=0",)  # the same of the recommended recipe; no cell has it by itself
# What identifies a run within its setting, and how it was computed, do not make it another setting.
NOT_A_SETTING = ("method", "seed", *COMPUTATION)


@dataclass(frozen=True)
class SeedMean:
    """Mean and spread over seeds."""

    values: tuple[float, ...]
    held_out: bool = False  # at least one run held samples out for calibration
    earlier: bool = False  # of runs with the earlier settings

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation; None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class TableRow:
    """An entry of a table with our figures for it, as the method is and with calibration on top."""

    entry: PaperEntry
    ours: SeedMean | None
    calibrated: SeedMean | None
    comparable: bool = True  # False for quick runs, which are not of the paper's setting
    changed: tuple[str, ...] = ()  # settings of ours that are not the cell's, as ``"key=value"``

    @property
    def difference(self) -> float | None:
        """Our mean less the published one."""
        return _difference(self.ours, self.entry) if self.comparable else None

    @property
    def calibrated_difference(self) -> float | None:
        """The same for the calibrated figure."""
        return _difference(self.calibrated, self.entry) if self.comparable else None


class Curve(NamedTuple):
    """A record, which of its predictions to read, and whether it ran with the earlier settings."""

    kept: Record
    place: FigureSource
    earlier: bool


class Found(NamedTuple):
    """What a record says about an entry."""

    value: float
    held_out: bool
    kept: Record


class RecordIndex:
    """Records sorted by setting, method and seed; of equal ones the first counts.

    Figures are read from runs of the cells' experiments, changed by ``overrides`` (``"key=value"``). A record whose
    settings this version does not understand is left out, and ``unreadable`` says why. ``earlier`` says whether runs
    with the earlier settings stand in where there are no others.
    """

    def __init__(
        self, records: Iterable[Record], *, quick: bool = False, overrides: Sequence[str] = (), earlier: bool = False
    ) -> None:
        self.quick, self.overrides, self.earlier = quick, deciding_overrides(overrides), earlier
        self.records: list[Record] = []  # that are understood
        self.by_setting: dict[tuple[str, str], dict[int, Record]] = {}
        self.unreadable: list[str] = []
        for kept in records:
            try:
                setting = setting_of(kept.parsed_config())
            except FedfeatError as error:
                self.unreadable.append(str(error))
                continue
            self.records.append(kept)
            self.by_setting.setdefault((setting, kept.method), {}).setdefault(kept.seed, kept)

    def with_settings(self, overrides: Sequence[str]) -> RecordIndex:
        """Return the same records, read for experiments that are changed in another way."""
        other = copy(self)
        other.overrides = deciding_overrides(overrides)
        return other

    def today(self) -> RecordIndex:
        """Return the same records, without those of the earlier settings in the place of others."""
        other = copy(self)
        other.earlier = False
        return other

    def knows(self, config: Config) -> bool:
        """Whether there is a run of just this experiment, however it was computed."""
        return config.seed in self.by_setting.get((setting_of(config), config.method), {})

    def has(self, cell: Cell, method: str) -> bool:
        """Whether there is a run of a method in a cell."""
        return any(self._runs(cell, method, changes) for changes in self._forms)

    def row(self, entry: PaperEntry) -> TableRow:
        """Return an entry with our figures."""
        ours = self._figure(entry, sources(entry.method))
        return TableRow(entry, ours, self._calibrated(entry), not self.quick, self.overrides)

    def _calibrated(self, entry: PaperEntry) -> SeedMean | None:
        if entry.measure != "accuracy" or is_calibrated(entry.method):
            return None
        return self._figure(entry, [FigureSource(entry.method + CALIBRATE, "corrected")])

    def seeds(self, entry: PaperEntry, *, calibrated: bool = False) -> set[int]:
        """Return the seeds of which there is a figure of ours; ``calibrated`` asks for that one where it can be."""
        trained = trained_as(entry.method)
        if calibrated and can_calibrate(trained):
            return set(self._runs(entry.cell, trained + CALIBRATE))
        return set(self._values(entry, sources(entry.method)))

    def runs_of(self, entry: PaperEntry) -> list[tuple[Record, float]]:
        """Return the records behind an entry and what each of them says about it, in the order of seeds."""
        found = next(filter(None, (self._values(entry, sources(entry.method), form) for form in self._forms)), {})
        return [(run.kept, run.value) for _, run in sorted(found.items())]

    def curve(self, cell: Cell, method: str, seed: int) -> Curve | None:
        """Return where the accuracies of a method after each task are read."""
        for form, place in product(self._forms, sources(method)):
            kept = self._runs(cell, place.method, form).get(seed)
            if kept is not None and not (place.prediction == "plain" and _divides(kept)):
                return Curve(kept, place, bool(form))
        return None

    @property
    def _forms(self) -> tuple[tuple[str, ...], ...]:
        """What is changed beyond ``overrides``, in the order of preference."""
        return ((), (*EARLIER, *RECIPE_EARLIER)) if self.earlier else ((),)

    def _values(
        self, entry: PaperEntry, places: Sequence[FigureSource], form: tuple[str, ...] = ()
    ) -> dict[int, Found]:
        values: dict[int, Found] = {}
        for place in places:
            for seed, kept in self._runs(entry.cell, place.method, form).items():
                value = read(kept, entry, place)
                if value is not None:
                    values.setdefault(seed, Found(value, place.held_out, kept))
        return values

    def _figure(self, entry: PaperEntry, places: Sequence[FigureSource]) -> SeedMean | None:
        for form in self._forms:
            values = self._values(entry, places, form)
            if values:
                runs = [values[seed] for seed in sorted(values)]
                return SeedMean(tuple(run.value for run in runs), any(run.held_out for run in runs), bool(form))
        return None

    def _runs(self, cell: Cell, method: str, form: tuple[str, ...] = ()) -> dict[int, Record]:
        bundles = tuple(change for change in self.overrides if change.startswith("recipe="))
        changed = (*bundles, *form, *(change for change in self.overrides if change not in bundles))
        return self.by_setting.get((_expected(self.quick, changed, cell, method), method), {})


def with_other_forms(rows: Sequence[TableRow], index: RecordIndex) -> list[TableRow]:
    """Return rows, those that were run with other forms of the correction followed by these."""
    return [shown for row in rows for shown in (row, *other_forms(row, index).values())]


def other_forms(row: TableRow, index: RecordIndex) -> dict[str, TableRow]:
    """Return a row with each other form of the prediction that it was run with; one that has no such form has none."""
    entry = row.entry
    found = {
        form: index.with_settings(changes).row(replace(entry, label=f"{entry.label}, {form}"))
        for form, changes in OTHER_FORMS.items()
        if {"feat", "egc"} & set(entry.method.split("+"))
    }
    return {form: other for form, other in found.items() if other.ours or other.calibrated}


def read(kept: Record, entry: PaperEntry, place: FigureSource) -> float | None:
    """Return what a record says about an entry."""
    if entry.measure == "numbers sent":
        return None if place.held_out else numbers_sent(kept)
    if place.prediction == "plain" and _divides(kept):
        return None  # the method itself would predict with divided logits
    if entry.task is None:
        return after_tasks(kept, place.prediction)[-1]
    rows = matrix(kept, place.prediction)
    return None if rows is None else rows[-1][entry.task - 1]


def _divides(kept: Record) -> bool:
    """Say whether FedCBDR's loss was kept under an ETF, and its division at test time with it."""
    table = as_recorded(kept.config)
    return bool(table.get("feat", {}).get("keep_tts") and table.get("fedcbdr", {}).get("scale_logits"))


def setting_of(config: Config) -> str:
    """Return what decides a result apart from method, seed and engine, as text that compares."""
    return json.dumps(setting_table(config), sort_keys=True)


def setting_table(config: Config) -> dict[str, Any]:
    """Return the same as a table of what is not the default."""
    # Everybody supplies a teacher of their own; which one is in the record.
    return changed_settings(config, without=(*NOT_A_SETTING, "clip2fl.teacher", *unread(config)))


def unread(config: Config) -> tuple[str, ...]:
    """Return settings that stand in a configuration and that its method does not read as it is composed."""
    table, parts = config.to_table(), parts_of(config.method)
    read = [f"{part.table}.{pattern}" for part in parts for pattern in part.reads]
    of_parts = flatten({part.table: table[part.table] for part in parts if part.table in table})
    keys = [key for key in of_parts if not any(fnmatchcase(key, pattern) for pattern in read)]
    names = {part.name for part in parts}
    of_etf = {"etf", "feat"} & names
    keys += ["calibrate.linear_deltas"] if of_etf else ["calibrate.deltas", "calibrate.gammas"]
    if (of_etf or "balanced" in names) and not of_parts.get("feat.keep_tts"):
        keys.append("fedcbdr.scale_logits")  # of a loss that is gone
    return tuple(keys)


@lru_cache(maxsize=4096)
def _expected(quick: bool, overrides: tuple[str, ...], cell: Cell, method: str) -> str:
    return setting_of(parse_config(settings(cell, method, quick=quick), overrides, where="--set"))


def _difference(figure: SeedMean | None, entry: PaperEntry) -> float | None:
    if figure is None or entry.published is None:
        return None
    return round(figure.mean - entry.published.mean, 8)  # what is beyond comes from the arithmetic
