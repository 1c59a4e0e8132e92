"""Figure 10: cosines of single images before and after EGC, and where the component it removes points to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.config.config import Config
from fedfeat.core.errors import FedfeatError
from fedfeat.geometry import egc_gate, group_energies
from fedfeat.methods.feat.correction import PRIOR_HEAD
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.experiments import CIFAR10_3, configured, feat_settings, without_earlier_classes
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, Row, means_over_seeds
from fedfeat_reproduction.figures.runs import ModelView, finished, model_view
from fedfeat_reproduction.figures.style import GRID, HEAD, INK, MUTED, PAGE, PAPER, TAIL, letter, paper_style, spaced

METHOD = "fedcbdr+feat"
TASK = 1  # the second: the first that is corrected
CASES = {"a": "corrected", "b": "corrected", "c": "reinforced", "d": "still wrong"}


def configs(quick: bool, seeds: Sequence[int]) -> list[Config]:
    """Return FEAT_F on three tasks; the model of every task is kept."""
    return [configured(CIFAR10_3, METHOD, seed, quick=quick, keep_models=True) for seed in seeds]


def objection(configs: Sequence[Config]) -> str | None:
    """Object to runs that do not correct predictions after the second task."""
    for egc in (feat_settings(config).egc for config in configs):
        if not egc.enabled:
            return "shows what EGC does; leave feat.egc.enabled=false out"
        if egc.from_task > TASK + 1:
            return f"shows what EGC does after task {TASK + 1}; leave feat.egc.from_task={egc.from_task} out"
    return without_earlier_classes(configs)


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return four images of earlier classes (first seed), and the removed component's alignments (all seeds)."""
    cases: list[Row] = []
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    names: dict[int, set[str]] = {}  # of a class by its number; seeds may have orders of their own
    for run in finished(runs):
        at = model_view(run, TASK)
        change = corrected(at)
        cases = cases or _case_rows(at, change)
        for label in range(at.num_old):
            names.setdefault(label, set()).add(at.trained.class_names[label])
            for part, means in _alignments(at, change, label).items():
                found.setdefault((label, part), []).append(means)
    rows: list[Row] = [
        {
            "panel": "e",
            "class": min(names[label]) if len(names[label]) == 1 else f"class {label + 1}",
            "part": part,
            **means_over_seeds(seeds),
            "seeds": len(seeds),
        }
        for (label, part), seeds in found.items()
    ]
    return Numbers([*cases, *rows])


def corrected(at: ModelView) -> Corrected:
    """Apply EGC to every test feature, with the run's own settings and prior."""
    egc = feat_settings(at.trained.config).egc
    if PRIOR_HEAD not in at.trained.known.numbers:
        raise FedfeatError(
            f"figure-10 shows what EGC does, and a run of {at.trained.config.method} has no prior for it; "
            "take a method with EGC, feat.egc.enabled=true, and exemplars"
        )
    energies = group_energies(
        at.cosines,
        num_old=at.num_old,
        rank_norm=egc.rank_norm,
        subspace=egc.subspace,
        num_prototypes=at.num_prototypes,
    )
    gate = egc_gate(energies, at.trained.known.numbers[PRIOR_HEAD], eps=egc.eps)
    return correct_features(at.features, at.prototypes, at.num_old, gate, tail_boost=egc.tail_boost)


def _case_rows(at: ModelView, change: Corrected) -> list[Row]:
    prototypes = at.prototypes.double()
    before, after = change.before @ prototypes, change.after @ prototypes
    tail = (at.labels < at.num_old).nonzero().flatten()
    chosen = choose_cases(margins(before, after, at.labels), tail)
    return [
        {
            "panel": panel,
            "class": name,
            "group": "tail" if number < at.num_old else "head",
            "true": number == int(at.labels[image]),
            "before": float(before[image, number]),
            "after": float(after[image, number]),
        }
        for panel, image in chosen.items()
        for number, name in enumerate(at.trained.class_names)
    ]


def _alignments(at: ModelView, change: Corrected, label: int) -> dict[str, dict[str, float]]:
    """Return how the removed component and the whole change lie to both spans, over a class's corrected images.

    Where nothing but the removed component changes, there is no second part.
    """
    spans = {"head": at.prototypes[:, at.num_old :], "tail": at.prototypes[:, : at.num_old]}
    members = at.labels == label
    moved = members & (change.change.norm(dim=1) > 1e-9)
    share = {"images_changed": float(moved.sum() / members.sum())}
    parts = {"removed": change.removed[moved]}
    if feat_settings(at.trained.config).egc.tail_boost:
        parts["whole"] = change.change[moved]
    return {p: {s: float(subspace_alignment(v, w).mean()) for s, w in spans.items()} | share for p, v in parts.items()}


def draw(numbers: Numbers) -> Any:
    """Draw four images' cosines before and after, and the alignments on the right."""
    with paper_style() as figure_class:
        figure = figure_class(figsize=(PAGE, 1.95), layout="constrained")
        *left, right = figure.subplots(1, 5, width_ratios=[1, 1, 1, 1, 1.3])
        for axis in left[1:]:
            axis.sharey(left[0])
            axis.tick_params(labelleft=False)
        for axis, (panel, kind) in zip(left, CASES.items(), strict=True):
            _bars(axis, numbers.where(panel=panel))
            axis.set_title(kind, fontsize=7.5)
            letter(axis, panel)
        left[0].set_ylabel("cosine with prototype")
        _spans(right, numbers.where(panel="e"))
        right.set_title("removed component", fontsize=7.5)
        letter(right, "e")
        spaced(figure, edge=0.045)
        figure.legend(handles=_legend(numbers), loc="outside upper center", ncols=6, fontsize=7.5, handlelength=1.2)
    return figure


def _bars(axis: Any, rows: list[Row]) -> None:
    if not rows:
        axis.text(0.5, 0.5, "no such image", transform=axis.transAxes, ha="center", color=MUTED, fontsize=7.5)
        axis.set_xticks([])
        return
    for number, row in enumerate(rows):
        colour = TAIL if row["group"] == "tail" else HEAD
        axis.bar(number - 0.2, row["before"], 0.38, fc=PAPER, ec=colour, lw=0.8, zorder=3)
        axis.bar(number + 0.2, row["after"], 0.38, fc=colour, ec=colour, lw=0.8, zorder=3)
    axis.axhline(0, color=INK, lw=0.6)
    axis.set_xticks(range(len(rows)), [row["class"] for row in rows])
    if max(len(row["class"]) for row in rows) > 2:
        for label in axis.get_xticklabels():
            label.set(rotation=55, ha="right", rotation_mode="anchor", fontsize=6.5)
    for label, row in zip(axis.get_xticklabels(), rows, strict=True):
        if row["true"]:
            label.set_fontweight("bold")
            label.set_bbox({"boxstyle": "round,pad=0.15", "fc": GRID, "ec": "none"})
    axis.tick_params(axis="x", length=0)


def _spans(axis: Any, rows: list[Row]) -> None:
    classes = list(dict.fromkeys(row["class"] for row in rows))
    for row in rows:
        number = classes.index(row["class"])
        if row["head"] is None:
            axis.text(number, 0.05, "unchanged", rotation=90, ha="center", color=MUTED, fontsize=7)
            continue
        for shift, span, colour, hatch in ((-0.2, "head", HEAD, ""), (0.2, "tail", TAIL, "////")):
            if row["part"] == "removed":
                axis.bar(number + shift, row[span], 0.38, fc=colour, ec=PAPER, hatch=hatch, lw=0.4, zorder=3)
            else:
                axis.plot(number + shift, row[span], "D", ms=3.2, mfc=PAPER, mec=INK, mew=0.8, zorder=5)
    axis.set_xticks(range(len(classes)), classes)
    axis.set_ylim(0, 1.05)
    axis.set_ylabel("alignment with span")
    axis.tick_params(axis="x", length=0)


def _legend(numbers: Numbers) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    whole = Line2D([], [], marker="D", ls="none", ms=3.2, mfc=PAPER, mec=INK, label="(e) whole change")
    return [
        Patch(fc=TAIL, ec=TAIL, label="earlier class"),
        Patch(fc=HEAD, ec=HEAD, label="current class"),
        Patch(fc=PAPER, ec=INK, label="before EGC"),
        Patch(fc=INK, ec=INK, label="after EGC"),
        *([whole] if numbers.where(part="whole") else []),
    ]


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about EGC."""
    panels = [panel for panel in numbers.values("panel") if panel != "e"]
    names = ", ".join(f"({panel})" for panel in panels) or "none"
    found = [
        Finding(
            "there are corrected images, reinforced ones and failures", f"found: {names}", len(panels) == len(CASES)
        )
    ]
    claims = {
        "removed": "the removed component lies nearer to the head than to the tail span (the first is 1 by definition)",
        "whole": "the same of the whole change, which also adds the tail component (the paper does not look at it)",
    }
    for part, claim in claims.items():
        rows = [row for row in numbers.where(panel="e", part=part) if row["head"] is not None]
        if rows:
            seen = "; ".join(f"{row['class']}: {row['head']:.2f} and {row['tail']:.2f}" for row in rows)
            found.append(Finding(claim, seen, all(row["head"] > row["tail"] for row in rows)))
    return found


class Corrected(NamedTuple):
    """Features (unit length) before and after EGC, the component it removes, and the whole change."""

    before: Tensor
    after: Tensor
    removed: Tensor  # g P_H x
    change: Tensor  # g P_T x - g P_H x; without the tail's share, -g P_H x


def projector(prototypes: Tensor) -> Tensor:
    """Return the orthogonal projector [d, d] on the span of prototypes [d, n]."""
    w = prototypes.double()
    onto: Tensor = w @ torch.linalg.pinv(w)
    return onto


def correct_features(
    features: Tensor, prototypes: Tensor, num_old: int, gate: Tensor, *, tail_boost: bool = True
) -> Corrected:
    """Return ``x' = x - g P_H x + g P_T x`` for features [N, d], prototypes [d, C] (old ones first), gates [N].

    :param tail_boost: ``False`` removes the head component and adds nothing, as in ``fedfeat.geometry.egc_correct``.
    """
    unit = F.normalize(features.double(), dim=1, eps=1e-12)
    tail, head = projector(prototypes[:, :num_old]), projector(prototypes[:, num_old:])
    g = gate.double()[:, None]
    removed = g * (unit @ head)
    change = g * (unit @ tail) - removed if tail_boost else -removed
    return Corrected(unit, F.normalize(unit + change, dim=1, eps=1e-12), removed, change)


def subspace_alignment(vectors: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosine between each vector and the span of prototypes, ``|P v| / |v|``; nan for no vector at all."""
    v = vectors.double()
    cosines: Tensor = (v @ projector(prototypes)).norm(dim=1) / v.norm(dim=1)
    return cosines


class Margins(NamedTuple):
    """Cosine with the own prototype less the largest with another, before and after."""

    before: Tensor
    after: Tensor


def margins(before: Tensor, after: Tensor, labels: Tensor) -> Margins:
    """Return both margins from cosines [N, C]; a positive one is a right prediction."""

    def margin(cosines: Tensor) -> Tensor:
        own = cosines.gather(1, labels[:, None])
        return (own - cosines.scatter(1, labels[:, None], -torch.inf).max(dim=1, keepdim=True).values).squeeze(1)

    return Margins(margin(before), margin(after))


def choose_cases(found: Margins, candidates: Tensor) -> dict[str, int]:
    """Return an image for each panel that has one: the middle of its kind by what it gained, not the best.

    (a, b) wrong before and right after, at one and at two thirds; (c) right before, with a larger margin after;
    (d) wrong before and after, with a smaller gap if there is any such image.
    """
    before, after = found.before[candidates], found.after[candidates]
    gain = after - before
    wrong = (before <= 0) & (after <= 0)
    kinds = {
        "a": (before <= 0) & (after > 0),
        "b": (before <= 0) & (after > 0),
        "c": (before > 0) & (gain > 0),
        "d": wrong & (gain > 0) if (wrong & (gain > 0)).any() else wrong,
    }
    chosen = {}
    for panel, place in {"a": 1 / 3, "b": 2 / 3, "c": 1 / 2, "d": 1 / 2}.items():
        members = kinds[panel].nonzero().flatten()
        members = members[gain[members].argsort(stable=True)]
        if len(members) > (panel == "b"):  # one corrected image is enough for (a), not for both
            chosen[panel] = int(candidates[members[int(place * len(members))]])
    return chosen


FIGURE = PaperFigure(
    "figure-10",
    "Cosines before and after EGC, and the removed component's alignment with both spans",
    "After the second of three tasks, images of earlier classes. Each of (a) to (d) is the middle of its kind by what "
    "it gained. (e) The removed component is g P_H x; diamonds show the whole change, g P_T x - g P_H x, where EGC "
    "also adds the tail component. Means over the images that EGC changes.",
    configs,
    measure,
    draw,
    findings,
    objection=objection,
)
