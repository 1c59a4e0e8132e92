"""Choices that the paper leaves open, and what each was worth in runs that differ in it alone."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fedfeat.config import Config, differing_keys, make_config
from fedfeat.federation.runfolder import result_keys
from fedfeat.paper.cells import BUDGETS, Cell, experiment
from fedfeat.paper.ours import NOT_A_SETTING, Shelf
from fedfeat.paper.records import Record
from fedfeat.paper.sources import Prediction, after_tasks

METHOD = "fedcbdr+feat+calibrate"


@dataclass(frozen=True)
class Choice:
    """One open question: the settings that answer it, what the paper says and what we do."""

    name: str
    title: str
    keys: tuple[str, ...]
    paper: str
    ours: str
    instead: tuple[Mapping[str, Any], ...]  # other answers: dotted key -> value
    method: str = METHOD  # that the answers are compared on


@dataclass(frozen=True)
class Variation:
    """A run that differs from the usual one of its cell, method and seed in some settings."""

    cell: Cell
    changes: Mapping[str, Any]  # dotted key -> value in this run
    usual: Record
    varied: Record

    def effect(self, prediction: Prediction) -> float:
        """Return what the change did to the final accuracy under a prediction, in points."""
        return after_tasks(self.varied, prediction)[-1] - after_tasks(self.usual, prediction)[-1]


def read_choices() -> list[Choice]:
    """Read the questions from ``choices.toml``."""
    text = resources.files("fedfeat.paper").joinpath("choices.toml").read_text(encoding="utf-8")
    return [
        Choice(**{**table, "keys": tuple(table["keys"]), "instead": tuple(table["instead"])})
        for table in tomllib.loads(text)["choice"]
    ]


def find_variations(records: Iterable[Record], shelf: Shelf) -> list[Variation]:
    """Return the runs that can be compared with a usual one, on the same images."""
    found = []
    for varied in records:
        cell = cell_of(varied)
        changes = {} if cell is None else changes_in(varied, cell)
        usual = shelf.runs(cell, varied.method).get(varied.seed) if cell is not None else None
        if cell is not None and changes and usual is not None and usual.images == varied.images:
            found.append(Variation(cell, changes, usual, varied))
    return found


def cell_of(kept: Record) -> Cell | None:
    """Return the cell of the paper that a record belongs to; None for data or a budget the paper does not have."""
    scenario = kept.config["scenario"]
    data = "tiny" if kept.dataset == "tiny-imagenet" else kept.dataset
    cell = Cell(data, scenario["tasks"], scenario["beta"], scenario["clients"])
    return cell if BUDGETS.get((data, cell.tasks)) == scenario["budget"] else None


def answers(choice: Choice, variations: Sequence[Variation]) -> list[Variation]:
    """Return the runs that changed this choice and nothing else."""
    return [v for v in variations if set(v.changes) <= set(choice.keys)]


def changes_in(varied: Record, cell: Cell) -> dict[str, Any]:
    """Return the settings in which a record differs from the usual experiment of its cell, with its values."""
    config = make_config(varied.config)
    usual = make_config({**experiment(cell, varied.method), **_teacher(config)})
    keys = differing_keys(_settings(usual), _settings(config))
    return {key: _at(config.to_table(), key) for key in keys}


def _settings(config: Config) -> dict[str, Any]:
    return {key: value for key, value in result_keys(config).items() if key not in NOT_A_SETTING}


def _teacher(config: Config) -> dict[str, Any]:
    """Return the teacher that a run of CLIP2FL had: it is not one of the choices."""
    teacher = _at(config.to_table(), "clip2fl.teacher")
    return {"clip2fl": {"teacher": teacher}} if teacher else {}


def _at(table: Mapping[str, Any], key: str) -> Any:
    value: Any = table
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
