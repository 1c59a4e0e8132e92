"""Figures 5, 6 and 8: accuracy over tasks, exemplars and local epochs; a panel per data set, a line per method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedfeat.config.config import Config
from fedfeat.config.presets import Cell
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures import experiments, style
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, Row, mean_and_std
from fedfeat_reproduction.figures.runs import finished

METHODS = ("fedcbdr+feat", "refed+feat", "fedcbdr", "refed")
BUDGETS = {experiments.CIFAR10: (150, 300, 450), experiments.CIFAR100: (500, 1000, 1500), experiments.TINY: (250, 500)}
QUICK_BUDGETS = {experiments.CIFAR10: (10, 20, 40)}
# The budgets that the paper's text names, in place of those on the axes of its picture.
TEXT_BUDGETS = {
    experiments.CIFAR10: (100, 150, 300),
    experiments.CIFAR100: (125, 250, 500),
    experiments.TINY: (250, 500),
}
QUICK_TEXT_BUDGETS = {experiments.CIFAR10: (7, 10, 20)}
QUICK_EPOCHS = {experiments.CIFAR10: (1, 2, 5, 10)}
EPOCHS = dict.fromkeys((experiments.CIFAR10, experiments.CIFAR100, experiments.TINY), (1, 2, 5, 10))
PAIRS = (("fedcbdr+feat", "fedcbdr"), ("refed+feat", "refed"))  # FEAT, and the base it is built on
Values = Mapping[Cell, tuple[int, ...]]
Points = Callable[[RunOutcome], list[tuple[int, float]]]  # a run -> (place on the x axis, accuracy in percent)


def accuracy_rows(
    runs: Sequence[RunOutcome], x: str, points: Points, published: Callable[[RunOutcome, int], float | None]
) -> list[Row]:
    """Return mean and deviation over seeds per data set, method and place."""
    found: dict[tuple[str, str, int], list[float]] = {}
    stated: dict[tuple[str, str, int], float | None] = {}
    for run in runs:
        for place, accuracy in points(run):
            key = run.config.data.name, run.config.method, place
            found.setdefault(key, []).append(accuracy)
            stated[key] = published(run, place)
    rows: list[Row] = []
    for (data, method, place), values in found.items():
        mean, std = mean_and_std(values)
        rows.append(
            {"data": data, "method": method, x: place, "accuracy": mean, "std": std, "seeds": len(values)}
            | {"published": stated[data, method, place]}
        )
    order = {name: number for number, name in enumerate(METHODS)}
    return sorted(rows, key=lambda r: (data_order(r), order.get(str(r["method"]), 9), r[x]))


def data_order(row: Row) -> int:
    """Return the place of a data set in the paper's order."""
    names = ["cifar10", "cifar100", "tiny-imagenet"]
    return names.index(str(row["data"])) if row["data"] in names else len(names)


def draw_panels(numbers: Numbers, x: str, label: str, *, evenly: bool) -> Any:
    """Draw the panels; ``evenly`` puts the places side by side whatever the distance between their values."""
    data = numbers.values("data")
    with style.paper_style() as figure_class:
        width = style.COLUMN if len(data) == 1 else style.PAGE
        figure = figure_class(figsize=(width, 2.4 if len(data) == 1 else 1.95), layout="constrained")
        axes = figure.subplots(1, len(data), squeeze=False)[0]
        for axis, name in zip(axes, data, strict=True):
            _draw_panel(axis, numbers.where(data=name), x, evenly)
            axis.set_title(style.data_name(name))
            axis.set_xlabel(label)
        axes[0].set_ylabel("accuracy (%)")
        handles = axes[0].get_legend_handles_labels()[0] + _published_mark(numbers)
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=3 if len(data) == 1 else 5,
            columnspacing=1.1,
            handlelength=2.2,
        )
    return figure


def _published_mark(numbers: Numbers) -> list[Any]:
    from matplotlib.lines import Line2D

    stated = any(row["published"] is not None for row in numbers.rows)
    return (
        [Line2D([], [], marker="x", ls="none", ms=4.5, mew=1.1, color=style.INK, label="published")] if stated else []
    )


def _draw_panel(axis: Any, rows: list[Row], x: str, evenly: bool) -> None:
    places = sorted({row[x] for row in rows})
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        line = [row for row in rows if row["method"] == method]
        at = np.array([places.index(row[x]) if evenly else row[x] for row in line], dtype=float)
        mean, std = (np.array([row[key] for row in line], dtype=float) for key in ("accuracy", "std"))
        look = style.method_look(method)
        axis.plot(at, mean, label=style.method_name(method), clip_on=False, **look)
        stated = [
            (place, row["published"]) for place, row in zip(at, line, strict=True) if row["published"] is not None
        ]
        if stated:
            axis.plot(*zip(*stated, strict=True), marker="x", ls="none", ms=4.5, mew=1.1, color=look["color"], zorder=6)
        std = np.nan_to_num(std)  # a single seed has no deviation
        if std.any():
            axis.fill_between(at, mean - std, mean + std, color=look["color"], alpha=0.13, lw=0)
    axis.set_xticks(range(len(places)) if evenly else places, [str(p) for p in places])
    axis.margins(x=0.06)
    axis.locator_params(axis="y", nbins=6)
    low, high = axis.get_ylim()
    axis.set_ylim(max(0.0, low), min(100.0, high))
    axis.tick_params(axis="x", color=style.INK)


def gains_over_base(numbers: Numbers, x: str, data: str) -> dict[str, dict[int, float]]:
    """Return FEAT's accuracy less its base's in one panel, by method and place."""
    found: dict[str, dict[int, float]] = {}
    for feat, base in PAIRS:
        higher, lower = (
            {row[x]: row["accuracy"] for row in numbers.where(data=data, method=method)} for method in (feat, base)
        )
        gains = {place: higher[place] - lower[place] for place in higher if place in lower}
        if gains:
            found[feat] = gains
    return found


def feat_above_base(numbers: Numbers, x: str, where: str) -> list[Finding]:
    """Hold FEAT against its base at every place of every panel; nothing is said where there are not both."""
    gains = [
        (gain, style.plain_name(method), place, data)
        for data in numbers.values("data")
        for method, by_place in gains_over_base(numbers, x, data).items()
        for place, gain in by_place.items()
    ]
    if not gains:
        return []
    above = sum(gain > 0 for gain, *_ in gains)
    gain, method, place, data = min(gains)
    seen = f"above at {above} of {len(gains)} {where}"
    seen += f"; smallest gain {gain:+.1f} points ({method}, {data}, {x} {place})"
    return [Finding("FEAT_F and FEAT_R are above their bases everywhere", seen, above == len(gains))]


def _curve_configs(quick: bool, seeds: Sequence[int]) -> list[Config]:
    """Return the four replay methods on each data set."""
    cells = (experiments.CIFAR10,) if quick else (experiments.CIFAR10, experiments.CIFAR100_10, experiments.TINY)
    return [experiments.configured(cell, m, seed, quick=quick) for cell in cells for m in METHODS for seed in seeds]


def _curve_numbers(runs: Sequence[RunOutcome]) -> Numbers:
    """Return the accuracy after each task; the main table holds the end of each curve, the rest is a picture only."""
    return Numbers(
        accuracy_rows(
            finished(runs),
            "task",
            lambda run: list(enumerate(_result(run)["accuracy_after_task"], start=1)),
            lambda run, task: experiments.published_accuracy(run.config) if task == run.config.scenario.tasks else None,
        )
    )


def _curve_findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about its curves."""
    found = feat_above_base(numbers, "task", "points of the curves")
    for data in numbers.values("data"):
        drops = {method: -rise for method, rise in _rises(numbers, data, METHODS).items()}
        if len(drops) > 1 and METHODS[0] in drops:
            claim = f"FEAT_F declines least ({data}: points lost from first to last task)"
            seen = ", ".join(f"{style.plain_name(m)} {drop:.1f}" for m, drop in drops.items())
            found.append(Finding(claim, seen, min(drops, key=lambda m: drops[m]) == METHODS[0]))
    return found


def _varied(
    quick: bool, seeds: Sequence[int], *, key: str, values: Values, in_small: Values, short: Sequence[str] = ()
) -> list[Config]:
    """Return the four replay methods with each value of a setting; ``short`` is what quick runs have besides."""
    besides = short if quick else ()
    return [
        experiments.configured(cell, method, seed, quick=quick, overrides=[*besides, f"{key}={value}"])
        for cell, tried in (in_small if quick else values).items()
        for value in tried
        for method in METHODS
        for seed in seeds
    ]


def _budget_findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about budgets."""
    found = feat_above_base(numbers, "budget", "budgets")
    for data in numbers.values("data"):
        rise = _rises(numbers, data, METHODS[:2])
        if len(rise) == 2:
            claim = f"FEAT_F gains more from a larger budget than FEAT_R ({data}: points from smallest to largest)"
            seen = ", ".join(f"{style.plain_name(method)} {points:+.1f}" for method, points in rise.items())
            found.append(Finding(claim, seen, rise["fedcbdr+feat"] > rise["refed+feat"]))
    return found


def _epoch_findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about longer local training."""
    found = feat_above_base(numbers, "epochs", "numbers of epochs")
    for data in numbers.values("data"):
        by_method = gains_over_base(numbers, "epochs", data)
        gains = {method: list(by.values()) for method, by in by_method.items() if len(by) > 1}
        if gains:
            seen = "; ".join(
                f"{style.plain_name(m)} {', '.join(f'{g:+.1f}' for g in points)}" for m, points in gains.items()
            )
            rising = any(all(b > a for a, b in pairwise(points)) for points in gains.values())
            claim = f"the gain does not simply grow with the epochs ({data}: points over the base)"
            found.append(Finding(claim, seen, not rising))
    return found


def _final_numbers(runs: Sequence[RunOutcome], x: str, place: Callable[[Config], int]) -> Numbers:
    """Return the accuracy after the last task at each place."""
    rows = accuracy_rows(
        finished(runs),
        x,
        lambda run: [(place(run.config), _result(run)["final_accuracy"])],
        lambda run, _: experiments.published_accuracy(run.config),
    )
    return Numbers(rows)


def _result(run: RunOutcome) -> dict[str, Any]:
    assert run.result is not None
    return dict(run.result)


def _rises(numbers: Numbers, data: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the last less the first accuracy of each method's line with more than one point."""
    lines = {m: [row["accuracy"] for row in numbers.where(data=data, method=m)] for m in methods}
    return {method: line[-1] - line[0] for method, line in lines.items() if len(line) > 1}


FORGETTING = PaperFigure(
    "figure-5",
    "Forgetting curves: accuracy on all classes seen so far after each task",
    "Means over seeds, bands of one sample deviation. FEAT with its correction.",
    _curve_configs,
    _curve_numbers,
    partial(draw_panels, x="task", label="tasks learned", evenly=False),
    _curve_findings,
    varies=("data.name",),
    of_accuracies=True,
)
REPLAY_BUDGET = PaperFigure(
    "figure-6",
    "Replay budget: final accuracy over the exemplars kept of each task",
    "The paper's text names other budgets than the axes of its figure; these are the axes, which hold the budgets of "
    "the main table. figure-6-text has those of the text.",
    partial(_varied, key="scenario.budget", values=BUDGETS, in_small=QUICK_BUDGETS),
    partial(_final_numbers, x="budget", place=lambda config: config.scenario.budget),
    partial(draw_panels, x="budget", label="exemplars per task", evenly=True),
    _budget_findings,
    varies=("scenario.budget", "data.name"),
    of_accuracies=True,
)
REPLAY_BUDGET_TEXT = replace(
    REPLAY_BUDGET,
    name="figure-6-text",
    title="Replay budget, with the budgets that the paper's text names",
    note="The axes of the paper's figure hold other budgets, those of figure-6; one of them is that of the main table.",
    configs=partial(_varied, key="scenario.budget", values=TEXT_BUDGETS, in_small=QUICK_TEXT_BUDGETS),
)
LOCAL_EPOCHS = PaperFigure(
    "figure-8",
    "Local epochs: final accuracy over the passes that a client makes per round",
    "Five tasks on each data set, as the numbers at two epochs in the main table; the paper does not say.",
    partial(_varied, key="train.local_epochs", values=EPOCHS, in_small=QUICK_EPOCHS, short=("train.rounds=3",)),
    partial(_final_numbers, x="epochs", place=lambda config: config.train.local_epochs),
    partial(draw_panels, x="epochs", label="local epochs per round", evenly=True),
    _epoch_findings,
    varies=("train.local_epochs", "data.name"),
    of_accuracies=True,
)
