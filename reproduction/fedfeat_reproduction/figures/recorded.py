"""Figures of accuracies alone, drawn from records: the runs themselves may be gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from fedfeat.config.config import Config, differing_keys, make_config
from fedfeat.config.presets import SEEDS
from fedfeat.core.settings import flatten
from fedfeat.runs.identity import folder_name
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.experiments import settings
from fedfeat_reproduction.figures.experiments import cell_of, experiments_of
from fedfeat_reproduction.figures.figure import FigureOptions, PaperFigure
from fedfeat_reproduction.results import Curve, RecordIndex
from fedfeat_reproduction.sources import after_tasks


class Recorded(NamedTuple):
    """Runs that are in records, and what is to be said below their drawing."""

    runs: list[RunOutcome]
    options: FigureOptions


def recorded_runs(figure: PaperFigure, index: RecordIndex) -> Recorded | None:
    """Return what records know of a figure: the panels and seeds of which there is every run; None without any."""
    if not figure.of_accuracies:
        return None
    panels: dict[tuple[str, int], list[tuple[Config, Curve | None]]] = {}
    for config in experiments_of(figure, False, SEEDS):
        panels.setdefault((config.data.name, config.seed), []).append((config, _found(config, index)))
    complete = [runs for runs in panels.values() if all(found for _, found in runs)]
    known = [(config, found) for runs in complete for config, found in runs if found is not None]
    if not known:
        return None
    curves = [curve for _, curve in known]
    remarks = sorted({curve.kept.images for curve in curves})
    remarks += ["some trained without the exemplars that calibration held out"] * any(c.place.held_out for c in curves)
    remarks += ["some with earlier settings"] * any(c.earlier for c in curves)
    return Recorded([_outcome(*run) for run in known], FigureOptions(mark="; ".join(remarks)))


def _found(config: Config, index: RecordIndex) -> Curve | None:
    cell = cell_of(config)
    ours, usual = (flatten(c.to_table()) for c in (config, make_config(settings(cell, config.method, config.seed))))
    changes = [f"{key}={json.dumps(ours.get(key))}" for key in differing_keys(ours, usual)]
    return index.with_settings(changes).curve(cell, config.method, config.seed)


def _outcome(config: Config, found: Curve) -> RunOutcome:
    curve = after_tasks(found.kept, found.place.prediction)
    result = {"accuracy_after_task": curve, "final_accuracy": curve[-1]}
    return RunOutcome(config, Path(folder_name(config)), result)
