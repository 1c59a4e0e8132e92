"""Figure 4: how far features of earlier classes lean towards current ones, without and with GSA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.geometry import group_energies
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures import style
from fedfeat_reproduction.figures.experiments import without_and_with_gsa, without_earlier_classes
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, Row
from fedfeat_reproduction.figures.runs import finished, model_view

ALL = "all"


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return cosines and energies of the test images of earlier classes after the last task."""
    found: dict[str, list[np.ndarray]] = {}
    points: dict[str, np.ndarray] = {}
    for run in finished(runs):
        columns, energies = _of_run(run)
        found.setdefault(run.config.method, []).append(columns)
        points.setdefault(f"energies {run.config.method}", energies)  # drawn for the first seed
    rows = [row for method in style.GSA if method in found for row in _rows(method, found[method])]
    return Numbers(rows, points)


def _of_run(run: RunOutcome) -> tuple[np.ndarray, np.ndarray]:
    """Return (own, nearest head, share with more head energy) per earlier class, and each sample's two energies."""
    at = model_view(run, run.config.scenario.tasks - 1)
    tail = at.labels < at.num_old
    cosines, labels = at.cosines[tail], at.labels[tail]
    leaning = lean(cosines, labels, at.num_old)
    energies = group_energies(cosines, num_old=at.num_old, num_prototypes=at.num_prototypes)
    per_sample = (leaning.own, leaning.head, energies.head > energies.tail)
    columns = np.stack([class_means(values, labels, at.num_old).numpy() for values in per_sample])
    return columns, np.stack([energies.head.numpy(), energies.tail.numpy()], axis=1).astype(np.float32)


def _rows(method: str, seeds: list[np.ndarray]) -> list[Row]:
    columns = np.mean(seeds, axis=0)
    whole = columns.mean(axis=1, keepdims=True)
    names = [ALL, *range(1, columns.shape[1] + 1)]
    return [
        {
            "method": method,
            "class": name,
            "own": own,
            "nearest_head": head,
            "head_dominated": share,
            "seeds": len(seeds),
        }
        for name, (own, head, share) in zip(names, np.hstack([whole, columns]).T.tolist(), strict=True)
    ]


def draw(numbers: Numbers) -> Any:
    """Draw cosines per class on the left, and the energies of every sample without and with GSA."""
    methods = numbers.values("method")
    with style.paper_style() as figure_class:
        figure = figure_class(figsize=(style.PAGE, 2.15), layout="constrained")
        left, *right = figure.subplots(1, 1 + len(methods), width_ratios=[1.45] + [1] * len(methods))
        _cosines(left, numbers)
        limits = _limits(list(numbers.arrays.values()))
        for axis, name, method in zip(right, "bc", methods, strict=False):
            _energies(axis, numbers.arrays[f"energies {method}"], limits)
            axis.set_title(style.GSA_NAMES[method])
            style.letter(axis, name)
        style.letter(left, "a")
        style.spaced(figure)
    return figure


def _cosines(axis: Any, numbers: Numbers) -> None:
    methods = numbers.values("method")
    for row in numbers.rows:
        if row["class"] == ALL:
            continue
        at = row["class"] + (0.16 * (2 * methods.index(row["method"]) - 1) if len(methods) > 1 else 0.0)
        axis.plot([at, at], [row["own"], row["nearest_head"]], color=style.MUTED, lw=0.6, alpha=0.6, zorder=2)
        axis.plot(at, row["own"], zorder=4, **style.gsa_look(row["method"], style.TAIL))
        axis.plot(at, row["nearest_head"], zorder=4, **style.gsa_look(row["method"], style.HEAD, "D"))
    axis.set_xticks([c for c in numbers.values("class") if c != ALL])
    axis.set_xlabel("earlier class, in order of arrival")
    axis.set_ylabel("mean cosine")
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, 0.0), high + 0.42 * (high - min(low, 0.0)))
    handles = style.gsa_legend({"own prototype": style.TAIL, "nearest current prototype": style.HEAD}, methods)
    axis.legend(handles=handles, loc="upper left", ncols=2, fontsize=7, handlelength=1, borderpad=0.1)


def _limits(clouds: list[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([cloud.ravel() for cloud in clouds])
    return max(float(np.quantile(values, 0.005)), 1e-5) / 1.3, float(values.max()) * 1.3


def _energies(axis: Any, cloud: np.ndarray, limits: tuple[float, float]) -> None:
    head, tail = np.maximum(cloud, limits[0]).T
    over = head > tail
    axis.fill_between(limits, limits, limits[1], color=style.HEAD, alpha=0.07, lw=0)
    axis.plot(limits, limits, color=style.INK, lw=0.7, ls=(0, (4, 2)))
    size = 9 if len(cloud) < 1500 else 2.5
    for chosen, colour, marker in ((~over, style.TAIL, "o"), (over, style.HEAD, "D")):
        axis.scatter(
            tail[chosen], head[chosen], s=size, c=colour, marker=marker, alpha=0.45, lw=0, rasterized=len(cloud) > 3000
        )
    axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    axis.grid(False)
    axis.set_xlabel(r"tail energy $e_T$")
    axis.set_ylabel(r"head energy $e_H$")
    axis.text(0.05, 0.95, rf"$e_H > e_T$: {100 * over.mean():.0f}%", transform=axis.transAxes, va="top", fontsize=7.5)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about drift."""
    whole = {row["method"]: row for row in numbers.where(**{"class": ALL})}
    if set(whole) != set(style.GSA):
        return []
    without, with_gsa = (whole[method] for method in style.GSA)
    leans = [row["nearest_head"] - row["own"] for row in (without, with_gsa)]
    shares = [100 * row["head_dominated"] for row in (without, with_gsa)]
    cosines = (
        f"cosine {with_gsa['nearest_head']:.2f} with the nearest current prototype, {with_gsa['own']:.2f} with its own"
    )
    return [
        Finding(
            "GSA makes features of earlier classes lean less towards current prototypes",
            f"nearest current less own cosine: without {leans[0]:+.3f}, with {leans[1]:+.3f}",
            leans[1] < leans[0],
        ),
        Finding(
            "with GSA they are still similar to current prototypes (over half the similarity to their own)",
            cosines,
            with_gsa["nearest_head"] > 0.5 * with_gsa["own"],
        ),
        Finding(
            "a notable share of their samples has more head than tail energy (over a tenth)",
            f"without {shares[0]:.0f} %, with {shares[1]:.0f} %",
            min(shares) > 10,
        ),
    ]


class Lean(NamedTuple):
    """Cosines of each sample with its own prototype and with the nearest prototype of the current ("head") classes."""

    own: Tensor
    head: Tensor


def lean(cosines: Tensor, labels: Tensor, num_old: int) -> Lean:
    """Return both cosines from those with all prototypes [N, C], old classes first."""
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    return Lean(own, cosines[:, num_old:].max(dim=1).values)


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean of a value per sample over each class; nan for a class without a sample."""
    sums = torch.zeros(num_classes, dtype=torch.double).index_add(0, labels, values.double())
    return sums / torch.bincount(labels, minlength=num_classes)


FIGURE = PaperFigure(
    "figure-4",
    "Drift of earlier classes towards current ones, and subspace energies, without and with GSA",
    "Test images of earlier classes after the last task. (a) Mean cosine with the own prototype and with the nearest "
    "prototype of the current task. (b, c) Rank-normalised energies of each image (first seed); above the diagonal the "
    "span of current prototypes holds more. The division by the number of classes less one favours the smaller group. "
    "No correction is applied.",
    without_and_with_gsa,
    measure,
    draw,
    findings,
    objection=without_earlier_classes,
)
