"""Figure 8: final accuracy over the number of local epochs per round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fedfeat.config import Config
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.experiments import CIFAR10, CIFAR100, TINY, configured, published_accuracy
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure
from fedfeat_reproduction.figures.panels import METHODS, accuracy_rows, draw_panels, feat_above_base, gains_over_base
from fedfeat_reproduction.figures.runs import finished
from fedfeat_reproduction.figures.style import plain_name

EPOCHS = (1, 2, 5, 10)
QUICK_ROUNDS = 3  # of up to ten epochs
CELLS = (CIFAR10, CIFAR100, TINY)


def configs(quick: bool, seeds: Sequence[int]) -> list[Config]:
    """Return the four replay methods with each number of epochs."""
    short = [f"train.rounds={QUICK_ROUNDS}"] if quick else []
    return [
        configured(cell, method, seed, quick=quick, overrides=[*short, f"train.local_epochs={epochs}"])
        for cell in (CELLS[:1] if quick else CELLS)
        for epochs in EPOCHS
        for method in METHODS
        for seed in seeds
    ]


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return the accuracy after the last task for each number of epochs."""
    return Numbers(accuracy_rows(finished(runs), "epochs", _final, lambda run, _: published_accuracy(run.config)))


def _final(run: RunOutcome) -> list[tuple[int, float]]:
    assert run.result is not None
    return [(run.config.train.local_epochs, run.result["final_accuracy"])]


def draw(numbers: Numbers) -> Any:
    """Draw one panel per data set."""
    return draw_panels(numbers, "epochs", "local epochs per round", evenly=True)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about longer local training."""
    found = feat_above_base(numbers, "epochs", "numbers of epochs")
    for data in numbers.values("data"):
        by_method = gains_over_base(numbers, "epochs", data)
        gains = {method: list(by.values()) for method, by in by_method.items() if len(by) > 1}
        if gains:
            seen = "; ".join(f"{plain_name(m)} {', '.join(f'{g:+.1f}' for g in points)}" for m, points in gains.items())
            rising = any(all(b > a for a, b in pairwise(points)) for points in gains.values())
            claim = f"the gain does not simply grow with the epochs ({data}: points over the base)"
            found.append(Finding(claim, seen, not rising))
    return found


FIGURE = PaperFigure(
    "figure-8",
    "Local epochs: final accuracy over the passes that a client makes per round",
    "Five tasks on each data set, as the numbers at two epochs in the main table; the paper does not say.",
    configs,
    measure,
    draw,
    findings,
    varies=("train.local_epochs", "data.name"),
)
