"""Choices that the paper leaves open: other answers, the runs that compare them, and pairs that differ in one alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedfeat.config.config import Config, differing_keys, make_config, parse_config
from fedfeat.config.presets import BUDGETS, SEEDS, Cell, experiment
from fedfeat.core.errors import ConfigError, FedfeatError, nearest
from fedfeat.data.dataset import NO_AUGMENTATION
from fedfeat.data.load import DATASETS
from fedfeat.runs.identity import deciding_settings
from fedfeat_reproduction.experiments import deciding_overrides, settings
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.results import EARLIER, NOT_A_SETTING, setting_of, unread
from fedfeat_reproduction.sources import PredictionName, after_tasks

METHOD = "fedcbdr+feat+calibrate"
CHOICES = "choices"
TITLE = "What the paper does not say: other answers than ours, and what they change"
CELL = Cell("cifar10", 5, 0.5)
QUICK_NOTE = "quick: built-in digits, a small network and few rounds; not the paper's setting, whose effects may differ"
ABOUT_AUGMENTATION = {"data.augment", "feat.egc.prior_transform"}
# What the very first runs had besides the earlier settings; pairs of them still tell what a choice is worth.
FIRST = (
    *EARLIER,
    "model.init=kaiming",
    "fedcbdr.mode=paper",
    "calibrate.held_out=0.2",
    f"calibrate.linear_deltas={[i / 4 for i in range(41)]}",
)


@dataclass(frozen=True)
class OpenChoice:
    """One open question: the settings that answer it, what the paper says and what we do."""

    name: str
    title: str
    keys: tuple[str, ...]
    paper: str
    ours: str
    instead: tuple[Mapping[str, Any], ...]  # other answers: dotted key -> value
    method: str = METHOD  # that the answers are compared on


@dataclass(frozen=True)
class Alternative:
    """One other answer to one open choice."""

    choice: OpenChoice
    changes: Mapping[str, Any]  # dotted key -> value

    @property
    def overrides(self) -> list[str]:
        """The changes as ``KEY=VALUE``; what JSON writes for plain values, TOML reads."""
        return [f"{key}={json.dumps(value)}" for key, value in self.changes.items()]


@dataclass(frozen=True)
class Variation:
    """A run that differs in some settings from another of the same cell, method, seed and images."""

    cell: Cell
    changes: Mapping[str, Any]  # dotted key -> value in this run, where the other has another one
    given: Mapping[str, Any]  # what both have, unlike the usual run of the cell
    usual: Record
    varied: Record

    def effect(self, prediction: PredictionName) -> float:
        """Return what the change did to the final accuracy under a prediction, in points."""
        return after_tasks(self.varied, prediction)[-1] - after_tasks(self.usual, prediction)[-1]


def read_choices() -> list[OpenChoice]:
    """Read the questions from ``choices.toml``."""
    text = resources.files("fedfeat_reproduction").joinpath("choices.toml").read_text(encoding="utf-8")
    return [
        OpenChoice(**{**table, "keys": tuple(table["keys"]), "instead": tuple(table["instead"])})
        for table in tomllib.loads(text)["choice"]
    ]


def choose_alternatives(only: str = "") -> list[Alternative]:
    """Return the alternatives of the named choices (``momentum,logits``); of all where none is named."""
    choices = {choice.name: choice for choice in read_choices()}
    names = [word.strip().lower() for word in only.split(",") if word.strip()]
    for name in names:
        if name not in choices:
            raise FedfeatError(f"--only {name!r}: no choice is called so; {nearest(name, choices)}")
    return [Alternative(c, changes) for c in choices.values() if not names or c.name in names for changes in c.instead]


@dataclass(frozen=True)
class ChoiceRuns:
    """What the usual run and every varied one share."""

    quick: bool = False
    overrides: Sequence[str] = ()

    @property
    def where(self) -> str:
        """Data set, scenario and length of the runs, and what was changed for all of them."""
        usual = self.usual(METHOD)
        scenario = usual.scenario
        cell = Cell(usual.data.name, scenario.tasks, scenario.beta, scenario.clients)
        others = [change for change in deciding_overrides(self.overrides) if not change.startswith("train.rounds=")]
        return ", ".join([cell.name, f"{usual.train.rounds} rounds a task", *others])

    def usual(self, method: str, seed: int = SEEDS[0]) -> Config:
        """Return the experiment with all choices as ours."""
        return self._config(method, seed, ())

    def varied(self, alternative: Alternative, seed: int = SEEDS[0]) -> Config:
        """Return the same experiment with one choice changed."""
        return self._config(alternative.choice.method, seed, alternative.overrides)

    def objection(self, alternative: Alternative) -> str | None:
        """Say why nothing can be measured here, if so; a usual run that cannot be is refused."""
        usual = self.usual(alternative.choice.method)
        try:
            varied = self.varied(alternative)
        except ConfigError as error:
            return str(error)
        if setting_of(usual) == setting_of(varied):
            return "the usual run does so already, or its method does not read this"
        if set(alternative.changes) <= ABOUT_AUGMENTATION and not _augments(usual):
            return f"images of {usual.data.name} are not augmented"
        return None

    def configs(self, alternatives: Sequence[Alternative], seeds: Sequence[int]) -> list[Config]:
        """Return the usual runs and the varied ones, seed by seed, so that first effects come early."""
        methods = dict.fromkeys(a.choice.method for a in alternatives)
        return [
            config
            for seed in seeds
            for config in (*(self.usual(m, seed) for m in methods), *(self.varied(a, seed) for a in alternatives))
        ]

    def _config(self, method: str, seed: int, changes: Iterable[str]) -> Config:
        table = settings(CELL, method, seed, quick=self.quick, purpose="choices")
        return make_config(table, [*self.overrides, *changes], where="--set")


def _augments(config: Config) -> bool:
    if config.data.augment != "auto":
        return config.data.augment != "none"
    known = DATASETS.get(config.data.name)
    return known is not None and known.augmentation != NO_AUGMENTATION


def find_variations(records: Iterable[Record]) -> list[Variation]:
    """Return the runs on test images that can be compared with another: the one that shares most of its changes."""
    tested = (kept for kept in records if not kept.validates)
    known = [(kept, cell, changes_in(kept, cell)) for kept in tested if (cell := cell_of(kept)) is not None]
    found = []
    for varied, cell, changes in known:
        same = (cell, varied.method, varied.seed, varied.images)
        others = [
            (kept, given)
            for kept, where, given in known
            if (where, kept.method, kept.seed, kept.images) == same and given.items() < changes.items()
        ]
        if others:
            usual, given = max(others, key=lambda other: len(other[1]))
            found.append(Variation(cell, {k: v for k, v in changes.items() if k not in given}, given, usual, varied))
    return found


def cell_of(kept: Record) -> Cell | None:
    """Return the cell of the paper that a record belongs to; None for data or a budget the paper does not have."""
    scenario = kept.config["scenario"]
    data = "tiny" if kept.dataset == "tiny-imagenet" else kept.dataset
    cell = Cell(data, scenario["tasks"], scenario["beta"], scenario["clients"])
    return cell if BUDGETS.get((data, cell.tasks)) == scenario["budget"] else None


def answers(choice: OpenChoice, variations: Sequence[Variation]) -> list[Variation]:
    """Return the runs that changed this choice and nothing else."""
    return [v for v in variations if set(v.changes) <= set(choice.keys)]


def changes_in(varied: Record, cell: Cell, usual: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings in which a record differs from the usual experiment of its cell, with its values.

    :param usual: changes (``"key=value"``) to that experiment which do not count, such as a recipe.
    """
    return _changes(varied.parsed_config(), cell, usual)


@cache
def changes_of(overrides: tuple[str, ...], cell: Cell, method: str) -> Mapping[str, Any]:
    """Return what overrides (``"key=value"``) change in the usual experiment of a cell, as far as a method reads it."""
    return _changes(parse_config(experiment(cell, method), overrides), cell)


def _changes(config: Config, cell: Cell, usual: Sequence[str] = ()) -> dict[str, Any]:
    expected = parse_config({**experiment(cell, config.method), **_teacher(config)}, usual)
    without = (*NOT_A_SETTING, *unread(config))
    keys = differing_keys(deciding_settings(expected, without=without), deciding_settings(config, without=without))
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
