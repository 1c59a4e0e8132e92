"""Figure 3: how alike clients' features of the same images are, class by class, in the middle and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures import style
from fedfeat_reproduction.figures.experiments import without_and_with_gsa, without_earlier_classes
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, Row
from fedfeat_reproduction.figures.runs import client_features, finished


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return each class's alignment over pairs of clients at the middle and the last task."""
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    olds: dict[int, int] = {}
    for run in finished(runs):
        tasks = run.config.scenario.tasks
        for task in dict.fromkeys((tasks // 2, tasks - 1)):  # of two tasks, both are the second
            views = client_features(run, task)
            olds[task] = views.num_old
            pairs = client_alignment(centred(views.features), views.labels, views.num_classes)
            found.setdefault((run.config.method, task), []).append(pairs.numpy())
    rows: list[Row] = []
    for (method, task), seeds in sorted(found.items(), key=lambda item: (item[0][1], style.GSA.index(item[0][0]))):
        rows += [
            {
                "task": task + 1,
                "method": method,
                "class": number + 1,
                "group": "tail" if number < olds[task] else "head",
                "alignment": float(np.mean([pairs[number].mean() for pairs in seeds])),
                "lowest_pair": float(min(pairs[number].min() for pairs in seeds)),
                "highest_pair": float(max(pairs[number].max() for pairs in seeds)),
                "seeds": len(seeds),
            }
            for number in range(len(seeds[0]))
        ]
    return Numbers(rows)


def draw(numbers: Numbers) -> Any:
    """Draw both tasks side by side: the mean over pairs of clients, and the range of the pairs."""
    tasks = numbers.values("task")
    counts = [len(numbers.where(task=task, method=numbers.rows[0]["method"])) for task in tasks]
    with style.paper_style() as figure_class:
        figure = figure_class(figsize=(style.COLUMN, 2.15), layout="constrained")
        axes = figure.subplots(1, len(tasks), sharey=True, width_ratios=[c + 1 for c in counts], squeeze=False)[0]
        for axis, task, count in zip(axes, tasks, counts, strict=True):
            _panel(axis, numbers.where(task=task))
            axis.set_title(f"after task {task}")
            axis.set_xticks(range(1, count + 1))
            axis.set_xlabel("class, in order of arrival")
        axes[0].set_ylabel("alignment across clients")
        handles = style.gsa_legend(
            {"earlier classes": style.TAIL, "current classes": style.HEAD}, numbers.values("method")
        )
        figure.legend(
            handles=handles, loc="outside upper center", ncols=4, fontsize=7, columnspacing=0.9, handlelength=1
        )
    return figure


def _panel(axis: Any, rows: list[Row]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for row in rows:
        shift = 0.17 * (2 * methods.index(row["method"]) - 1) if len(methods) > 1 else 0.0
        colour = style.TAIL if row["group"] == "tail" else style.HEAD
        at = row["class"] + shift
        axis.plot([at, at], [row["lowest_pair"], row["highest_pair"]], color=colour, lw=0.8, alpha=0.55, zorder=2)
        axis.plot(
            at,
            row["alignment"],
            zorder=4,
            **style.gsa_look(row["method"], colour, "o" if row["group"] == "tail" else "D"),
        )
    style.shade_head(axis, [row["class"] for row in rows if row["group"] == "head"])
    axis.spines["bottom"].set_color(style.MUTED)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about alignment."""

    def mean(task: int, method: str, group: str) -> float:
        return float(np.mean([r["alignment"] for r in numbers.where(task=task, method=method, group=group)]))

    found = []
    without, with_gsa = style.GSA
    for task in numbers.values("task"):
        if numbers.where(task=task, method=without):
            tail, head = mean(task, without, "tail"), mean(task, without, "head")
            claim = f"task {task}, without GSA: earlier classes are less aligned than current ones"
            found.append(Finding(claim, f"earlier {tail:.3f}, current {head:.3f}", tail < head))
        if numbers.where(task=task, method=without) and numbers.where(task=task, method=with_gsa):
            before, after = mean(task, without, "tail"), mean(task, with_gsa, "tail")
            claim = f"task {task}: GSA aligns earlier classes better"
            found.append(Finding(claim, f"without {before:.3f}, with {after:.3f}", after > before))
    return found


def centred(features: Tensor) -> Tensor:
    """Return directions of features [K, N, d] around their common mean over all models and images.

    Features behind a ReLU share a large mean; with it, any two of them look alike.
    """
    unit = F.normalize(features.double(), dim=2, eps=1e-12)
    return unit - unit.mean(dim=(0, 1), keepdim=True)


def client_alignment(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean cosine between two clients' features of the same image, per class and pair: [C, pairs].

    :param features: [K, N, d], the same N images through each of K models.
    :param labels: [N], in ``0..num_classes-1``; a class without an image gives nan.
    """
    unit = F.normalize(features.double(), dim=2, eps=1e-12)
    pairs = list(combinations(range(len(unit)), 2))
    cosines = torch.stack([(unit[a] * unit[b]).sum(dim=1) for a, b in pairs])
    members = F.one_hot(labels, num_classes).double()
    return (cosines @ members / members.sum(dim=0)).T


FIGURE = PaperFigure(
    "figure-3",
    "Cross-client feature alignment by class, at the middle and the last task",
    "The paper gives no formula. Here: each client trains the task's final model once more on what it held in that "
    "task (the last round's learning rate); all test images go through each client's model; features are centred on "
    "their common mean; alignment is the cosine between two clients' features of the same image, averaged over a "
    "class's images. Lines span the pairs of clients.",
    without_and_with_gsa,
    measure,
    draw,
    findings,
    objection=without_earlier_classes,
)
