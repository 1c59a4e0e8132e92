"""The experiments behind the figures: cells of the paper's main table, with what a figure varies."""

from __future__ import annotations

from collections.abc import Sequence

from fedfeat.config import Config, make_config
from fedfeat.config.presets import BUDGETS, Cell, experiment
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat_reproduction.cells import quick_experiment
from fedfeat_reproduction.tables import MAIN, TABLES

CIFAR10, CIFAR100, TINY = (Cell(data, 5, 0.5) for data in ("cifar10", "cifar100", "tiny"))
CIFAR10_3 = Cell("cifar10", 3, 0.5)
CIFAR100_10 = Cell("cifar100", 10, 0.5)
QUICK_ROUNDS = 6
QUICK_BUDGETS = {3: 30, 5: 20}  # ten exemplars per class: enough for a linear classifier to remember something


def configured(
    cell: Cell, method: str, seed: int, *, quick: bool, overrides: Sequence[str] = (), keep_models: bool = False
) -> Config:
    """Return one experiment of a cell; ``quick`` takes the built-in digits in as many tasks and clients instead."""
    table = (quick_experiment if quick else experiment)(cell, method, seed)
    changes = [f"train.rounds={QUICK_ROUNDS}", f"scenario.budget={QUICK_BUDGETS[cell.tasks]}"] if quick else []
    if keep_models:
        changes.append("run.keep_models=true")
    return make_config(table, [*changes, *overrides], where=cell.name)


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


def published_accuracy(config: Config) -> float | None:
    """Return what the main table states for an experiment, None where it is not one of its cells as published."""
    data = "tiny" if config.data.name == "tiny-imagenet" else config.data.name
    cell = Cell(data, config.scenario.tasks, config.scenario.beta, config.scenario.clients)
    as_published = BUDGETS.get((cell.data, cell.tasks)) == config.scenario.budget and config.train.local_epochs == 2
    for entry in TABLES[MAIN].entries:
        if as_published and entry.cell == cell and entry.method == config.method and entry.published is not None:
            return entry.published.mean
    return None
