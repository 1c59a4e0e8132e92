"""All cells of the main table at a glance, and what accuracy costs in bytes: FEAT_F as published, ours, our recipe."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedfeat.config.presets import Cell
from fedfeat_reproduction import recommended
from fedfeat_reproduction.results import RecordIndex, SeedMean
from fedfeat_reproduction.tables import MAIN, TABLES, PaperEntry, Value

FEAT_F, FEDCBDR = "fedcbdr+feat", "fedcbdr"
LENGTHS = (20, 40, 100)  # rounds a task, of the picture of traffic


@dataclass(frozen=True)
class CellFigures:
    """One cell: FEAT_F as published, and ours, and our recipe with the rounds that it recommends."""

    cell: Cell
    published: Value
    ours: SeedMean | None
    recipe: SeedMean | None


@dataclass(frozen=True)
class TrafficPoint:
    """What a method reached in a cell with so many rounds a task, and what each client sent and received for it."""

    cell: Cell
    method: str
    rounds: int
    accuracy: SeedMean
    bytes_per_client: float
    images: str  # of the records: only points of the same ones are joined


def figures_by_cell(index: RecordIndex) -> list[CellFigures]:
    """Return all cells of the main table, in its order."""
    found = []
    for entry in TABLES[MAIN].entries:
        if entry.method == FEAT_F and entry.published is not None:
            ours = PaperEntry(recommended.METHOD, recommended.METHOD, entry.cell, None)
            recipe = index.with_settings(recommended.SETTINGS).row(ours).ours
            found.append(CellFigures(entry.cell, entry.published, index.row(entry).ours, recipe))
    return found


def in_words(cells: Sequence[CellFigures]) -> str:
    """Say in how many cells ours and the recipe were run, and how they compare with the published FEAT_F."""
    compared = {
        "Our FEAT_F": [(c.ours, c.published) for c in cells],
        f"Our recipe `{recommended.NAME}`": [(c.recipe, c.published) for c in cells],
    }
    return " ".join(f"{name} {_compared(pairs)}." for name, pairs in compared.items())


def _compared(pairs: Iterable[tuple[SeedMean | None, Value]]) -> str:
    pairs = list(pairs)
    apart = [(figure.mean - value.mean, value.std or 0.0) for figure, value in pairs if figure is not None]
    told = f"was run in {len(apart)} of {len(pairs)} cells"
    if not apart:
        return told
    points = [difference for difference, _ in apart]
    above, within = sum(p > 0 for p in points), sum(abs(p) <= std for p, std in apart)
    mean, distance = statistics.fmean(points), statistics.fmean(map(abs, points))
    apart_by = f"{mean:+.1f} points in the mean, {distance:.1f} in absolute value"
    counts = f"above the published FEAT_F in {above}, below in {sum(p < 0 for p in points)}"
    return f"{told}: {counts}, within its deviation in {within}; {apart_by}"


def traffic_points(index: RecordIndex) -> list[TrafficPoint]:
    """Return what was recorded of the recipe, of FEAT_F and of FedCBDR with each length, for skew 0.5 and 5 clients.

    Runs with the earlier settings stand in for the recipe alone.
    """
    cells = [e.cell for e in TABLES[MAIN].entries if e.method == FEAT_F and (e.cell.beta, e.cell.clients) == (0.5, 5)]
    return [
        point
        for cell in cells
        for method in (recommended.METHOD, FEAT_F, FEDCBDR)
        for rounds in LENGTHS
        if (point := _traffic_point(index, cell, method, rounds))
    ]


def _traffic_point(index: RecordIndex, cell: Cell, method: str, rounds: int) -> TrafficPoint | None:
    ours = method == recommended.METHOD
    index = index if ours else index.today()
    index = index.with_settings((*(recommended.SETTINGS if ours else ()), f"train.rounds={rounds}"))
    entry = PaperEntry(method, method, cell, None)
    accuracy, records = index.row(entry).ours, [kept for kept, _ in index.runs_of(entry)]
    if accuracy is None:
        return None
    sent = statistics.fmean((kept.bytes_up + kept.bytes_down) / cell.clients for kept in records)
    return TrafficPoint(cell, method, rounds, accuracy, sent, records[0].images)
