"""The usual experiment and its variations: pairs that differ in the settings of one open choice alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfeat.config import Config, make_config
from fedfeat.config.presets import DEALING, RECIPE, SEEDS, Cell, Table, experiment
from fedfeat.core.errors import ConfigError, FedfeatError, nearest
from fedfeat.data.dataset import NO_AUGMENTATION
from fedfeat.data.load import DATASETS
from fedfeat_reproduction.changed import counting
from fedfeat_reproduction.choices import METHOD, Choice, read_choices
from fedfeat_reproduction.ours import setting_of
from fedfeat_reproduction.runs import small_experiment

CHOICES = "choices"
TITLE = "What the paper does not say: other answers than ours, and what they change"
CELL = Cell("cifar10", 5, 0.5)
QUICK_NOTE = "quick: built-in digits, a small network and few rounds; not the paper's setting, whose effects may differ"
QUICK_BUDGET = 40  # with fewer exemplars no client of the digits can hold any back for calibration
ABOUT_AUGMENTATION = {"data.augment", "feat.egc.prior_transform"}


@dataclass(frozen=True)
class Alternative:
    """One other answer to one open choice."""

    choice: Choice
    changes: Mapping[str, Any]  # dotted key -> value

    @property
    def overrides(self) -> list[str]:
        """The changes as ``KEY=VALUE``; what JSON writes for plain values, TOML reads."""
        return [f"{key}={json.dumps(value)}" for key, value in self.changes.items()]


@dataclass(frozen=True)
class Protocol:
    """What the usual run and every varied one share."""

    quick: bool = False
    overrides: Sequence[str] = ()

    @property
    def where(self) -> str:
        """Data set, scenario and length of the runs, and what was changed for all of them."""
        usual = self.usual(METHOD)
        dealt = usual.scenario
        cell = f"{usual.data.name}-{dealt.tasks}-beta{dealt.beta:g}-k{dealt.clients}"
        others = [change for change in counting(self.overrides) if not change.startswith("train.rounds=")]
        return ", ".join([cell, f"{usual.train.rounds} rounds a task", *others])

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
        table = (quick_usual if self.quick else experiment)(CELL, method, seed)
        return make_config(table, [*self.overrides, *changes], where="--set")


def quick_usual(cell: Cell, method: str, seed: int = SEEDS[0]) -> Table:
    """Return the quick experiment with our answers; how much is held back is not one, with so few exemplars."""
    answers = {key: value for key, value in RECIPE.items() if key != "calibrate"}
    table = {**small_experiment(cell, method, seed), **answers}
    return {**table, "scenario": {**table["scenario"], **DEALING, "budget": QUICK_BUDGET}}


def choose_alternatives(only: str = "") -> list[Alternative]:
    """Return the alternatives of the named choices (``momentum,logits``); of all where none is named."""
    choices = {choice.name: choice for choice in read_choices()}
    names = [word.strip().lower() for word in only.split(",") if word.strip()]
    for name in names:
        if name not in choices:
            raise FedfeatError(f"--only {name!r}: no choice is called so; {nearest(name, choices)}")
    return [Alternative(c, changes) for c in choices.values() if not names or c.name in names for changes in c.instead]


def _augments(config: Config) -> bool:
    if config.data.augment != "auto":
        return config.data.augment != "none"
    known = DATASETS.get(config.data.name)
    return known is not None and known.augmentation != NO_AUGMENTATION
