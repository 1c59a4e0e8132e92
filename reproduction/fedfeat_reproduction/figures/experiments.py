"""The experiments behind the figures: cells of the paper's main table, what a figure varies, what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedfeat.config.config import Config, make_config
from fedfeat.config.presets import BUDGETS, Cell
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat.core.settings import flatten
from fedfeat.methods.feat.settings import FeatSettings
from fedfeat_reproduction.experiments import settings
from fedfeat_reproduction.figures.figure import USUAL, FigureOptions, PaperFigure
from fedfeat_reproduction.figures.style import GSA
from fedfeat_reproduction.tables import MAIN, TABLES

CIFAR10, CIFAR100, TINY = (Cell(data, 5, 0.5) for data in ("cifar10", "cifar100", "tiny"))
CIFAR10_3 = Cell("cifar10", 3, 0.5)
CIFAR100_10 = Cell("cifar100", 10, 0.5)


def configured(
    cell: Cell, method: str, seed: int, *, quick: bool, overrides: Sequence[str] = (), keep_models: bool = False
) -> Config:
    """Return one experiment of a cell; ``quick`` takes the built-in digits in as many tasks and clients instead."""
    table = settings(cell, method, seed, quick=quick, purpose="figure")
    kept = ["run.keep_models=true"] if keep_models else []
    return make_config(table, [*kept, *overrides], where=cell.name)


def without_and_with_gsa(quick: bool, seeds: Sequence[int]) -> list[Config]:
    """Return the fixed classifier without and with GSA, the runs of figures 3, 4 and 9; every task's model is kept."""
    return [configured(CIFAR10, method, seed, quick=quick, keep_models=True) for method in GSA for seed in seeds]


def experiments_of(
    figure: PaperFigure, quick: bool, seeds: Sequence[int], options: FigureOptions = USUAL
) -> list[Config]:
    """Return the experiments of a figure as asked for; what it could not be drawn from is refused."""
    usual = narrowed(figure.configs(quick, seeds), options.only)
    configs = [make_config(config.to_table(), options.overrides, where="--set") for config in usual]
    for key in figure.varies:
        values = _values(usual, key)
        if len(values) > 1 and set(values) != set(_values(configs, key)):
            shown = ", ".join(map(str, values))
            raise FedfeatError(f"--set {key}: {figure.name} itself varies it ({shown}); leave it out")
    objection = figure.objection(configs)
    if objection is not None:
        raise FedfeatError(f"{figure.name}: {objection}")
    return configs


def _values(configs: Sequence[Config], key: str) -> list[Any]:
    found = (flatten(config.to_table()).get(key) for config in configs)
    return list(dict.fromkeys(value for value in found if value is not None))


def narrowed(configs: Sequence[Config], only: str) -> list[Config]:
    """Return the experiments on the data sets and with the methods named, such as ``cifar10,fedcbdr+feat``."""
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    data = {c.data.name for c in configs}
    methods = {c.method for c in configs}
    for word in words:
        if word not in data | methods:
            raise FedfeatError(
                f"--only {word!r}: this figure has no such data set or method; {nearest(word, data | methods)}"
            )
    data, methods = (known.intersection(words) or known for known in (data, methods))
    return [c for c in configs if c.data.name in data and c.method in methods]


def without_earlier_classes(configs: Sequence[Config]) -> str | None:
    """Object to experiments of a single task."""
    if all(config.scenario.tasks > 1 for config in configs):
        return None
    return "looks at classes of earlier tasks, and with scenario.tasks=1 there are none; set it to 2 or more"


def feat_settings(config: Config) -> FeatSettings:
    """Return the settings of FEAT that an experiment has."""
    settings = config.parts.get("feat") or FeatSettings()
    assert isinstance(settings, FeatSettings)
    return settings


def cell_of(config: Config) -> Cell:
    """Return the cell that an experiment is of, whatever else it changes."""
    data = "tiny" if config.data.name == "tiny-imagenet" else config.data.name
    return Cell(data, config.scenario.tasks, config.scenario.beta, config.scenario.clients)


def published_accuracy(config: Config) -> float | None:
    """Return what the main table states for an experiment, None where it is not one of its cells as published."""
    cell = cell_of(config)
    if BUDGETS.get((cell.data, cell.tasks)) != config.scenario.budget or config.train.local_epochs != 2:
        return None
    stated = (e.published for e in TABLES[MAIN].entries if (e.cell, e.method) == (cell, config.method))
    return next((value.mean for value in stated if value is not None), None)
