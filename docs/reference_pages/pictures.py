"""The pictures of FEAT's three components: the program in examples/pieces_in_your_loop.py, looked into.

The numbers come from real digits and the functions of the library; nothing is drawn by hand.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.api import ETFHead, egc_correct, egc_gate, etf_cosine, group_energies, gsa_loss
from fedfeat.report.figures import INK, MUTED, SERIES, WIDTH, drawing, save_png

EXAMPLE = Path("examples/pieces_in_your_loop.py")
SEED = 0
SPHERE_CLASSES = 3
SPHERE_EPOCHS = (1, 12)
TILT = math.radians(35)  # of the view on the sphere
PER_CLASS = 6  # test images of each class among the similarities
TAIL, HEAD = "#2f3a46", "#c8102e"  # old and new classes, as in the report
Array = NDArray[np.float64]


class Prediction(NamedTuple):
    """One test image of an old class: what it is, its energies, and its cosines before and after the correction."""

    image: Array
    label: int
    prior: float
    head: float
    tail: float
    gate: float
    before: Array
    after: Array


def sphere_features(epochs: int) -> tuple[Array, Array, Array]:
    """Return prototypes [3, 3], test features of norm one after so many epochs [n, 3], and their labels."""
    example = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(SEED)
    (images, labels), _, (pixels, truth) = example["data"]()
    seen, shown = labels < SPHERE_CLASSES, truth < SPHERE_CLASSES
    backbone = example["make_backbone"]()
    backbone[-1] = nn.Linear(example["WIDTH"], 3)
    head = ETFHead(3, seed=SEED)
    head.grow(SPHERE_CLASSES)
    example["train"](backbone, head, images[seen], labels[seen], gsa=0.0, epochs=epochs)
    return head.prototypes.T.double().numpy(), _directions(backbone, pixels[shown]), truth[shown].numpy()


def similarities() -> dict[str, tuple[Array, float]]:
    """Return cosines between test features, sorted by class, and their GSA loss: without it, with it, the target."""
    example = runpy.run_path(str(EXAMPLE))
    classes = example["NUM_CLASSES"]
    found = {}
    for name, weight in (("without GSA", 0.0), ("with GSA", 0.1)):
        torch.manual_seed(SEED)
        (images, labels), _, (pixels, truth) = example["data"]()
        rows = torch.cat([(truth == c).nonzero().flatten()[:PER_CLASS] for c in range(classes)])
        backbone, head = example["make_backbone"](), ETFHead(example["WIDTH"], seed=SEED, logits="cosine")
        head.grow(classes)
        example["train"](backbone, head, images, labels, gsa=weight, epochs=12)
        unit = torch.from_numpy(_directions(backbone, pixels[rows]))
        loss = float(gsa_loss(unit, truth[rows], classes))
        found[name] = ((unit @ unit.T).numpy(), loss)
    same = np.repeat(np.arange(classes), PER_CLASS)
    found["target"] = (np.where(same[:, None] == same[None, :], 1.0, etf_cosine(classes)), 0.0)
    return found


def corrected_prediction() -> Prediction:
    """Return the first test image of an old class that EGC brings back from the new ones."""
    example = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(SEED)
    (images, labels), _, (pixels, truth) = example["data"]()
    old = example["NUM_OLD"]
    head = ETFHead(example["WIDTH"], seed=SEED, logits="cosine")
    head.grow(example["NUM_CLASSES"])
    backbone, kept = example["learn_in_two_steps"](head, images, labels, gsa=0.1)
    with torch.no_grad():
        prior = float(group_energies(head.cosine(backbone(images[kept])), num_old=old).head.mean())
        before = head.cosine(backbone(pixels))
        after = egc_correct(before, num_old=old, prior_head=prior)
        energies = group_energies(before, num_old=old)
        gate = egc_gate(energies, prior)
    back = (truth < old) & (before.argmax(dim=1) >= old) & (after.argmax(dim=1) == truth)
    row = int(back.nonzero()[0])
    return Prediction(
        pixels[row, 0].double().numpy(),
        int(truth[row]),
        prior,
        *(float(values[row]) for values in (energies.head, energies.tail, gate)),
        *(cosines[row].double().numpy() for cosines in (before, after)),
    )


def _directions(backbone: nn.Module, images: Tensor) -> Array:
    with torch.no_grad():
        found: Array = F.normalize(backbone(images).double(), dim=1).numpy()
    return found


def etf_picture() -> Any:
    """Draw prototypes and features of three classes on a sphere, early and late in training."""
    with drawing() as figure_class:
        figure = figure_class(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.subplots(1, 2)
        for axis, epochs in zip(axes, SPHERE_EPOCHS, strict=True):
            prototypes, features, labels = sphere_features(epochs)
            view = _view(prototypes)
            axis.set_title(f"after {epochs} epoch{'s' if epochs > 1 else ''}", loc="center")
            _sphere(axis)
            for c, (x, y, _) in enumerate(prototypes @ view.T):
                _points(axis, features[labels == c] @ view.T, SERIES[c])
                arrow = {"arrowstyle": "-|>", "color": SERIES[c], "lw": 2.2, "mutation_scale": 14}
                axis.annotate("", (x, y), (0, 0), arrowprops=arrow, zorder=5)
                beside = np.array([x, y]) / 2 + 0.13 * np.array([y, -x]) / math.hypot(x, y)
                axis.text(*beside, f"$w_{c}$", color=SERIES[c], ha="center", va="center", fontsize=12)
        _legend(figure)
    return figure


def _view(prototypes: Array) -> Array:
    """Return a rotation that looks at the plane of the prototypes from above it, the first one in front."""
    first = prototypes[0]
    normal = np.cross(prototypes[0], prototypes[1])
    normal /= np.linalg.norm(normal)
    plane = np.stack([np.cross(normal, first), normal, first])  # right, up, towards the eye
    turn = np.array([[1, 0, 0], [0, math.cos(TILT), -math.sin(TILT)], [0, math.sin(TILT), math.cos(TILT)]])
    found: Array = turn @ plane
    return found


def _sphere(axis: Any) -> None:
    """Draw the outline of the sphere and the circle in which the prototypes lie, its far side in dots."""
    angle = np.linspace(0, 2 * math.pi, 241)
    axis.fill(np.cos(angle), np.sin(angle), color="#f6f8fa", zorder=0)
    axis.plot(np.cos(angle), np.sin(angle), color=MUTED, lw=1, zorder=1)
    for side, style in ((angle >= math.pi, "-"), (angle <= math.pi, ":")):
        across, up = np.cos(angle[side]), math.sin(TILT) * np.sin(angle[side])
        axis.plot(across, up, color=MUTED, lw=0.9, ls=style, zorder=1)
    axis.set(xlim=(-1.3, 1.3), ylim=(-1.18, 1.18), aspect="equal")
    axis.axis("off")


def _points(axis: Any, points: Array, colour: str) -> None:
    near = points[:, 2] >= 0
    for rows, alpha, order in ((near, 0.75, 4), (~near, 0.25, 2)):
        axis.scatter(*points[rows, :2].T, s=14, color=colour, alpha=alpha, lw=0, zorder=order)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], marker="o", ls="", ms=5, color=SERIES[c]) for c in range(SPHERE_CLASSES)]
    names = [f"test images of {c}" for c in range(SPHERE_CLASSES)]
    figure.legend(dots, names, loc="outside lower center", ncols=SPHERE_CLASSES)


def gsa_picture() -> Any:
    """Draw cosines between test features: cross-entropy alone, with GSA, and what GSA asks for."""
    found = similarities()
    with drawing() as figure_class:
        figure = figure_class(figsize=(WIDTH, 2.7), layout="constrained")
        axes = figure.subplots(1, 3)
        for axis, (name, (cosines, loss)) in zip(axes, found.items(), strict=True):
            picture = axis.imshow(cosines, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
            title = name if name == "target" else f"{name}: loss {loss:.2f}"
            axis.set_title(title, loc="center")
            axis.grid(visible=False)
            middles = PER_CLASS * np.arange(10) + (PER_CLASS - 1) / 2
            axis.set_xticks(middles, range(10))
            axis.set_yticks(middles, range(10))
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            axis.set_xlabel("test images, by digit")
        bar = figure.colorbar(picture, ax=axes, shrink=0.75, aspect=22, pad=0.02)
        bar.set_label("cosine of two features")
        bar.outline.set_visible(False)
    return figure


def egc_picture() -> Any:
    """Draw one prediction: the image, its energies against the prior, and its cosines before and after."""
    one = corrected_prediction()
    with drawing() as figure_class:
        figure = figure_class(figsize=(WIDTH, 2.9), layout="constrained")
        picture, energy, cosines = figure.subplots(1, 3, width_ratios=(1, 1.5, 3.2))
        picture.imshow(one.image, cmap="Greys", interpolation="nearest")
        picture.set_title(f"an old {one.label}", loc="center")
        picture.axis("off")
        _draw_energies(energy, one)
        _draw_cosines(cosines, one)
    return figure


def _draw_energies(axis: Any, one: Prediction) -> None:
    over = max(0.0, one.head - one.prior)
    axis.bar(0, min(one.head, one.prior), color=HEAD, width=0.6)
    axis.bar(0, over, bottom=one.prior, color="none", edgecolor=HEAD, hatch="////", width=0.6, lw=1)
    axis.bar(1.5, one.tail, color=TAIL, width=0.6)
    axis.plot([-0.45, 1.1], [one.prior, one.prior], color=INK, lw=1.2, ls=(0, (4, 2)))
    axis.text(0.75, one.prior, "prior", ha="center", va="bottom", fontsize=8.5)
    axis.text(0.36, one.prior + over / 2, "too\nmuch", va="center", fontsize=8.5)
    axis.set_xticks([0, 1.5], ["new", "old"])
    axis.set_title(f"energy: gate {one.gate:.2f}", loc="center")
    axis.set_xlim(-0.5, 2)


def _draw_cosines(axis: Any, one: Prediction) -> None:
    digits = np.arange(len(one.before))
    colours = [TAIL if digit < 5 else HEAD for digit in digits]
    axis.bar(digits - 0.2, one.before, width=0.36, color="none", edgecolor=colours, lw=1.2)
    axis.bar(digits + 0.2, one.after, width=0.36, color=colours)
    axis.axhline(0, color=MUTED, lw=0.8)
    for values, shift, word in ((one.before, -0.2, "before"), (one.after, 0.2, "after")):
        best = int(values.argmax())
        axis.annotate(
            f"{word}: {best}",
            (best + shift, values[best]),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
        )
    axis.set_xticks(digits)
    axis.set_xlabel("digit: 0 to 4 are old, 5 to 9 new")
    axis.set_title("cosine with each prototype", loc="center")
    axis.margins(y=0.12)


PICTURES: dict[str, Callable[[], Any]] = {"etf": etf_picture, "gsa": gsa_picture, "egc": egc_picture}


def write_pictures(folder: Path) -> None:
    """Draw every picture into a folder."""
    torch.set_num_threads(1)
    for name, draw in PICTURES.items():
        save_png(draw(), folder / f"{name}.png")
