"""Choices that the paper leaves open, and what each was worth in runs that differ in it alone."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedfeat.config import Config, differing_keys, parse_config
from fedfeat.config.presets import BUDGETS, Cell, experiment
from fedfeat.runs.identity import deciding_settings
from fedfeat_reproduction.cells import earlier_experiment
from fedfeat_reproduction.ours import NOT_A_SETTING, unread_grids
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.sources import Prediction, after_tasks

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
    """A run that differs in some settings from another of the same cell, method, seed and images."""

    cell: Cell
    changes: Mapping[str, Any]  # dotted key -> value in this run, where the other has another one
    given: Mapping[str, Any]  # what both have, unlike the usual run of the cell
    usual: Record
    varied: Record

    def effect(self, prediction: Prediction) -> float:
        """Return what the change did to the final accuracy under a prediction, in points."""
        return after_tasks(self.varied, prediction)[-1] - after_tasks(self.usual, prediction)[-1]


def read_choices() -> list[Choice]:
    """Read the questions from ``choices.toml``."""
    text = resources.files("fedfeat_reproduction").joinpath("choices.toml").read_text(encoding="utf-8")
    return [
        Choice(**{**table, "keys": tuple(table["keys"]), "instead": tuple(table["instead"])})
        for table in tomllib.loads(text)["choice"]
    ]


def find_variations(records: Iterable[Record]) -> list[Variation]:
    """Return the runs that can be compared with another: the one that shares most of what is not as usual."""
    known = [(kept, cell, changes_in(kept, cell)) for kept in records if (cell := cell_of(kept)) is not None]
    found = []
    for varied, cell, changes in known:
        others = [
            (kept, given)
            for kept, where, given in known
            if where == cell and _alike(kept, varied) and len(given) < len(changes) and _within(given, changes)
        ]
        if others:
            usual, given = max(others, key=lambda other: len(other[1]))
            found.append(Variation(cell, {k: v for k, v in changes.items() if k not in given}, given, usual, varied))
    return found


def _alike(a: Record, b: Record) -> bool:
    return (a.method, a.seed, a.images) == (b.method, b.seed, b.images)


def _within(part: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    return all(key in whole and whole[key] == value for key, value in part.items())


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
    return _changes(parse_config(varied.config), cell)


@cache
def earlier_changes(cell: Cell, method: str) -> Mapping[str, Any]:
    """Return the settings in which the first runs of a method differ from the usual experiment of a cell."""
    return _changes(parse_config(earlier_experiment(cell, method)), cell)


def _changes(config: Config, cell: Cell) -> dict[str, Any]:
    usual = parse_config({**experiment(cell, config.method), **_teacher(config)})
    without = (*NOT_A_SETTING, *unread_grids(config.method))
    keys = differing_keys(deciding_settings(usual, without=without), deciding_settings(config, without=without))
    return {key: _at(config.to_table(), key) for key in keys}


def _teacher(config: Config) -> dict[str, Any]:
    """Return the teacher that a run of CLIP2FL had: it is not one of the choices."""
    teacher = _at(config.to_table(), "clip2fl.teacher")
    return {"clip2fl": {"teacher": teacher}} if teacher else {}


def _at(table: Mapping[str, Any], key: str) -> Any:
    value: Any = table
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
