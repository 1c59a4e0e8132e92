"""Figure 5: accuracy on all classes seen so far, after each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedfeat.config import Config
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.experiments import CIFAR10, CIFAR100_10, TINY, configured, published_accuracy
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure
from fedfeat_reproduction.figures.panels import METHODS, accuracy_rows, draw_panels, feat_above_base
from fedfeat_reproduction.figures.runs import finished
from fedfeat_reproduction.figures.style import plain_name

CELLS = (CIFAR10, CIFAR100_10, TINY)


def configs(quick: bool, seeds: Sequence[int]) -> list[Config]:
    """Return the four replay methods on each data set."""
    cells = CELLS[:1] if quick else CELLS
    return [configured(cell, m, seed, quick=quick) for cell in cells for m in METHODS for seed in seeds]


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return the accuracy after each task."""
    return Numbers(accuracy_rows(finished(runs), "task", _curve, _published))


def _curve(run: RunOutcome) -> list[tuple[int, float]]:
    assert run.result is not None
    return list(enumerate(run.result["accuracy_after_task"], start=1))


def _published(run: RunOutcome, task: int) -> float | None:
    # The main table holds the end of each curve; the rest is in the paper's picture only.
    return published_accuracy(run.config) if task == run.config.scenario.tasks else None


def draw(numbers: Numbers) -> Any:
    """Draw one panel per data set."""
    return draw_panels(numbers, "task", "tasks learned", evenly=False)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about its curves."""
    found = feat_above_base(numbers, "task", "points of the curves")
    for data in numbers.values("data"):
        drops = {}
        for method in METHODS:
            curve = [row["accuracy"] for row in numbers.where(data=data, method=method)]
            if len(curve) > 1:
                drops[method] = curve[0] - curve[-1]
        if len(drops) > 1 and METHODS[0] in drops:
            claim = f"FEAT_F declines least ({data}: points lost from first to last task)"
            seen = ", ".join(f"{plain_name(m)} {drop:.1f}" for m, drop in drops.items())
            found.append(Finding(claim, seen, min(drops, key=lambda m: drops[m]) == METHODS[0]))
    return found


FIGURE = PaperFigure(
    "figure-5",
    "Forgetting curves: accuracy on all classes seen so far after each task",
    "Means over seeds, bands of one sample deviation. FEAT with its correction.",
    configs,
    measure,
    draw,
    findings,
    varies=("data.name",),
)
