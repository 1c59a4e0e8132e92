"""Figure 7: final accuracy of FEAT_F over its three settings, each held while the other two vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fedfeat.config.config import Config
from fedfeat.methods.feat.settings import FeatSettings
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.experiments import CIFAR10, configured, feat_settings, published_accuracy
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, Row, mean_and_std
from fedfeat_reproduction.figures.runs import finished
from fedfeat_reproduction.figures.style import COLUMN, DASHES, GRID, INK, MUTED, PAPER, method_look, paper_style

METHOD, BASE = "fedcbdr+feat", "fedcbdr"
GRIDS = {"lambda": (0.05, 0.1, 0.5), "rho": (0.5, 0.7, 0.9), "tau": (0.07, 0.5)}
TEXT_GRIDS = {"lambda": (1.0, 5.0, 10.0), "rho": (0.5, 0.7, 0.9), "tau": (0.1, 0.5)}  # named in the paper's text
KEYS = {"lambda": "feat.gsa.lambda", "rho": "feat.egc.rho", "tau": "feat.gsa.tau"}
LEAST_SPAN = 6.0  # points on the axis, so that small differences look small
QUICK_ROUNDS = 4
SYMBOLS = {"lambda": r"$\lambda$", "rho": r"$\rho$", "tau": r"$\tau$"}


def configs(quick: bool, seeds: Sequence[int], grids: Mapping[str, tuple[float, ...]] = GRIDS) -> list[Config]:
    """Return the whole grid, and the base that FEAT is held against."""
    short = [f"train.rounds={QUICK_ROUNDS}"] if quick else []
    found = [configured(CIFAR10, BASE, seed, quick=quick, overrides=short) for seed in seeds]
    for values in product(*grids.values()):
        changes = [f"{key}={value}" for key, value in zip(KEYS.values(), values, strict=True)]
        found += [configured(CIFAR10, METHOD, seed, quick=quick, overrides=[*short, *changes]) for seed in seeds]
    return found


def objection(configs: Sequence[Config]) -> str | None:
    """Object to the base alone."""
    if any(config.method == METHOD for config in configs):
        return None
    return f"shows the settings of {METHOD}; name it in --only too, or leave --only out"


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return the final accuracy of every point of the grid, and of the base."""
    found: dict[tuple[float | None, ...], list[RunOutcome]] = {}
    for run in finished(runs, METHOD):
        found.setdefault(_point(run.config), []).append(run)
    return Numbers([_row(point, group) for point, group in found.items()])


def _point(config: Config) -> tuple[float | None, ...]:
    if config.method != METHOD:
        return None, None, None
    settings = feat_settings(config)
    return settings.gsa.weight, settings.egc.rho, settings.gsa.tau


def _row(point: tuple[float | None, ...], group: Sequence[RunOutcome]) -> Row:
    mean, std = mean_and_std([run.result["final_accuracy"] for run in group if run.result is not None])
    config = group[0].config
    usual = FeatSettings()
    stated = point in ((None, None, None), (usual.gsa.weight, usual.egc.rho, usual.gsa.tau))
    return {
        "method": config.method,
        **dict(zip(GRIDS, point, strict=True)),
        "accuracy": mean,
        "std": std,
        "seeds": len(group),
        "published": published_accuracy(config) if stated else None,
    }


def draw(numbers: Numbers) -> Any:
    """Draw a box per value of each setting over the values of the other two, with every point beside it."""
    base = [row["accuracy"] for row in numbers.where(method=BASE)]
    with paper_style() as figure_class:
        figure = figure_class(figsize=(COLUMN, 1.95), layout="constrained")
        axes = figure.subplots(1, 3, sharey=True, width_ratios=[3, 3, 2.2])
        for axis, name in zip(axes, GRIDS, strict=True):
            groups = _groups(numbers, name)
            _boxes(axis, groups)
            axis.set_xticks(range(len(groups)), [f"{value:g}" for value in groups])
            axis.set_xlim(-0.6, len(groups) - 0.4)
            axis.set_xlabel(SYMBOLS[name])
        axes[0].set_ylabel("accuracy (%)")
        _base_line(figure, axes, base, [row["accuracy"] for row in numbers.where(method=METHOD)])
    return figure


def _groups(numbers: Numbers, name: str) -> dict[float, list[float]]:
    rows = numbers.where(method=METHOD)
    return {value: [r["accuracy"] for r in rows if r[name] == value] for value in sorted({r[name] for r in rows})}


def _boxes(axis: Any, groups: dict[float, list[float]]) -> None:
    colour = method_look(METHOD)["color"]
    line = {"color": INK, "lw": 0.8}
    axis.boxplot(
        list(groups.values()),
        positions=range(len(groups)),
        widths=0.5,
        showfliers=False,
        whis=(0, 100),
        patch_artist=True,
        boxprops={"facecolor": GRID, "edgecolor": INK, "lw": 0.8},
        medianprops={"color": INK, "lw": 1.6},
        whiskerprops=line,
        capprops=line,
    )
    for place, values in enumerate(groups.values()):
        shift = np.linspace(-0.14, 0.14, len(values)) if len(values) > 1 else np.zeros(1)
        axis.plot(place + shift, values, "o", ms=2.6, mfc=colour, mec=PAPER, mew=0.4, zorder=5)


def _base_line(figure: Any, axes: Any, base: list[float], ours: list[float]) -> None:
    """Draw the base without FEAT where it is near; name its level where a line would squeeze the boxes."""
    middle = (max(ours) + min(ours)) / 2
    half = max(0.56 * (max(ours) - min(ours)), LEAST_SPAN / 2)
    near = [level for level in base if middle - 3 * half < level]
    low, high = min([middle - half, *(level - 0.5 for level in near)]), min(middle + half, 100.0)
    axes[0].set_ylim(low, high)
    for level in base:
        figure.suptitle(f"FedCBDR without FEAT: {level:.1f} %{' (dashed)' if near else ''}", fontsize=7, color=MUTED)
    for level in near:
        for axis in axes:
            axis.axhline(level, color=MUTED, lw=0.9, ls=DASHES)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about sensitivity."""
    ours = [row["accuracy"] for row in numbers.where(method=METHOD)]
    base = [row["accuracy"] for row in numbers.where(method=BASE)]
    found = []
    if ours and base:
        seen = f"{min(ours):.1f} to {max(ours):.1f}, FedCBDR {base[0]:.1f}"
        found.append(Finding("every choice of the settings is above FedCBDR", seen, min(ours) > base[0]))
    for name in GRIDS:
        medians = {value: float(np.median(group)) for value, group in _groups(numbers, name).items()}
        if len(medians) < 2:
            continue
        spread = max(medians.values()) - min(medians.values())
        seen = ", ".join(f"{value:g}: {median:.1f}" for value, median in medians.items()) + _no_effect(numbers, name)
        found.append(Finding(f"{name} changes little (medians over the other two, within 2 points)", seen, spread <= 2))
    return found


def _no_effect(numbers: Numbers, name: str) -> str:
    """Say so where a setting changes nothing at all, which boxes cannot show."""
    others = [key for key in GRIDS if key != name]
    rows = numbers.where(method=METHOD)
    by_rest: dict[tuple[Any, ...], set[float]] = {}
    for row in rows:
        by_rest.setdefault(tuple(row[key] for key in others), set()).add(row["accuracy"])
    exact = len(rows) > len(by_rest) and all(len(values) == 1 for values in by_rest.values())
    return "; no effect at all: a client's exemplars fit into one batch" if exact and name == "rho" else ""


FIGURE = PaperFigure(
    "figure-7",
    "Sensitivity of FEAT_F to lambda, rho and tau",
    "A box holds the accuracies over all values of the other two settings; whiskers reach the extremes. The paper's "
    "text names other ranges than its caption and axes; these are the caption's, figure-7-text has those of the text.",
    configs,
    measure,
    draw,
    findings,
    varies=tuple(KEYS.values()),
    objection=objection,
    of_accuracies=True,
)
TEXT_FIGURE = replace(
    FIGURE,
    name="figure-7-text",
    title="Sensitivity of FEAT_F, with the ranges that the paper's text names",
    note="A box holds the accuracies over all values of the other two settings; whiskers reach the extremes. The usual "
    "settings (lambda 0.1, tau 0.07) are not among these ranges.",
    configs=partial(configs, grids=TEXT_GRIDS),
)
