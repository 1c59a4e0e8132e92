"""Figure 6: final accuracy over the number of exemplars kept of each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedfeat.config import Config
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.experiments import CIFAR10, CIFAR100, TINY, configured, published_accuracy
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure
from fedfeat_reproduction.figures.panels import METHODS, accuracy_rows, draw_panels, feat_above_base
from fedfeat_reproduction.figures.runs import finished
from fedfeat_reproduction.figures.style import plain_name

BUDGETS = {CIFAR10: (150, 300, 450), CIFAR100: (500, 1000, 1500), TINY: (250, 500)}
QUICK_BUDGETS = {CIFAR10: (10, 20, 40)}


def configs(quick: bool, seeds: Sequence[int]) -> list[Config]:
    """Return the four replay methods with each budget."""
    return [
        configured(cell, method, seed, quick=quick, overrides=[f"scenario.budget={budget}"])
        for cell, budgets in (QUICK_BUDGETS if quick else BUDGETS).items()
        for budget in budgets
        for method in METHODS
        for seed in seeds
    ]


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return the accuracy after the last task for each budget."""
    return Numbers(accuracy_rows(finished(runs), "budget", _final, lambda run, _: published_accuracy(run.config)))


def _final(run: RunOutcome) -> list[tuple[int, float]]:
    assert run.result is not None
    return [(run.config.scenario.budget, run.result["final_accuracy"])]


def draw(numbers: Numbers) -> Any:
    """Draw one panel per data set."""
    return draw_panels(numbers, "budget", "exemplars per task", evenly=True)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about budgets."""
    found = feat_above_base(numbers, "budget", "budgets")
    for data in numbers.values("data"):
        rise = {}
        for method in METHODS[:2]:
            curve = [row["accuracy"] for row in numbers.where(data=data, method=method)]
            if len(curve) > 1:
                rise[method] = curve[-1] - curve[0]
        if len(rise) == 2:
            claim = f"FEAT_F gains more from a larger budget than FEAT_R ({data}: points from smallest to largest)"
            seen = ", ".join(f"{plain_name(method)} {points:+.1f}" for method, points in rise.items())
            found.append(Finding(claim, seen, rise["fedcbdr+feat"] > rise["refed+feat"]))
    return found


FIGURE = PaperFigure(
    "figure-6",
    "Replay budget: final accuracy over the exemplars kept of each task",
    "The paper's text names other budgets (100, 150, 300; 125, 250, 500; 250, 500) than the axes of its figure; these "
    "are the axes, which hold the budgets of the main table.",
    configs,
    measure,
    draw,
    findings,
    varies=("scenario.budget", "data.name"),
)
