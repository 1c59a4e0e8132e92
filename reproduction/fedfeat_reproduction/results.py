"""Our results beside the published ones: records sorted into cells, averaged over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedfeat.config.config import Config, parse_config
from fedfeat.config.presets import Cell
from fedfeat.config.renamed import as_recorded
from fedfeat.core.errors import FedfeatError
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
# formula also adds one; the energies are to be divided by the rank, and are divided by one less. FedCBDR's program
# divides logits by its temperatures, and a loader shuffles what EGC's prior is measured on.
OTHER_FORMS: Mapping[str, tuple[str, ...]] = {
    "removing alone": ("feat.egc.tail_boost=false",),
    "removing alone, by rank": ("feat.egc.rank_norm=true_rank", "feat.egc.tail_boost=false"),
    "prior over shuffled exemplars": ("feat.egc.prior_order=shuffled",),
    "logits divided by temperatures": ("fedcbdr.scale_logits=true",),
}
# What identifies a run within its setting, and how it was computed, do not make it another setting.
NOT_A_SETTING = ("method", "seed", *COMPUTATION)


@dataclass(frozen=True)
class SeedMean:
    """Mean and spread over seeds."""

    values: tuple[float, ...]
    held_out: bool = False  # at least one run held samples out for calibration

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


class RecordIndex:
    """Records sorted by setting, method and seed; of equal ones the first counts.

    Figures are read from runs of the cells' experiments, changed by ``overrides`` (``"key=value"``). A record whose
    settings this version does not understand is left out, and ``unreadable`` says why.
    """

    def __init__(self, records: Iterable[Record], *, quick: bool = False, overrides: Sequence[str] = ()) -> None:
        self.quick, self.overrides = quick, deciding_overrides(overrides)
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

    def has(self, cell: Cell, method: str) -> bool:
        """Whether there is a run of a method in a cell."""
        return bool(self._runs(cell, method))

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
        found = self._values(entry, sources(entry.method))
        return [(kept, value) for _, (value, _, kept) in sorted(found.items())]

    def source(self, cell: Cell, method: str, seed: int) -> tuple[Record, FigureSource] | None:
        """Return the record from which the accuracies of a method are read, and which of its predictions they are."""
        for place in sources(method):
            kept = self._runs(cell, place.method).get(seed)
            if kept is not None and not (place.prediction == "plain" and _divides(kept)):
                return kept, place
        return None

    def _values(self, entry: PaperEntry, places: Sequence[FigureSource]) -> dict[int, tuple[float, bool, Record]]:
        values: dict[int, tuple[float, bool, Record]] = {}
        for place in places:
            for seed, kept in self._runs(entry.cell, place.method).items():
                value = read(kept, entry, place)
                if value is not None:
                    values.setdefault(seed, (value, place.held_out, kept))
        return values

    def _figure(self, entry: PaperEntry, places: Sequence[FigureSource]) -> SeedMean | None:
        values = self._values(entry, places)
        if not values:
            return None
        ordered = [values[seed] for seed in sorted(values)]
        return SeedMean(tuple(v for v, *_ in ordered), held_out=any(held for _, held, _ in ordered))

    def _runs(self, cell: Cell, method: str) -> dict[int, Record]:
        return self.by_setting.get((_expected(self.quick, self.overrides, cell, method), method), {})


def with_other_forms(rows: Sequence[TableRow], index: RecordIndex) -> list[TableRow]:
    """Return rows, those that were run with other forms of the correction followed by these."""
    return [shown for row in rows for shown in (row, *other_forms(row, index).values())]


def other_forms(row: TableRow, index: RecordIndex) -> dict[str, TableRow]:
    """Return a row with each other form of the prediction that it was run with; one that has no such form has none."""
    entry = row.entry
    found = {
        form: index.with_settings(changes).row(replace(entry, label=f"{entry.label}, {form}"))
        for form, changes in OTHER_FORMS.items()
        if reads(entry.method, changes)
    }
    return {form: other for form, other in found.items() if other.ours or other.calibrated}


def reads(method: str, changes: Sequence[str]) -> bool:
    """Say whether a form of the prediction is one that a method has."""
    parts = set(method.split("+"))
    corrects = bool({"feat", "egc"} & parts)
    return corrects if changes[0].startswith("feat.") else "fedcbdr" in parts and not corrects


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
    return changed_settings(config, without=(*NOT_A_SETTING, "clip2fl.teacher", *unread_grids(config.method)))


def unread_grids(method: str) -> tuple[str, ...]:
    """Return the settings of ``calibrate`` that are for the other kind of classifier."""
    of_etf = {"etf", "feat"} & set(method.split("+"))
    return ("calibrate.linear_deltas",) if of_etf else ("calibrate.deltas", "calibrate.gammas")


@lru_cache(maxsize=4096)
def _expected(quick: bool, overrides: tuple[str, ...], cell: Cell, method: str) -> str:
    return setting_of(parse_config(settings(cell, method, quick=quick), overrides, where="--set"))


def _difference(figure: SeedMean | None, entry: PaperEntry) -> float | None:
    if figure is None or entry.published is None:
        return None
    return round(figure.mean - entry.published.mean, 8)  # what is beyond comes from the arithmetic
