"""Figure 9: where the evidence for an image's class comes from (Grad-CAM), without and with GSA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.engines.base import choose_device
from fedfeat.models import Network, PretrainedBackbone
from fedfeat.models.backbones import pool
from fedfeat.runs.sweep import RunOutcome
from fedfeat.runs.trained import Trained, load_trained
from fedfeat_reproduction.figures.experiments import without_and_with_gsa, without_earlier_classes
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure, Row, means_over_seeds
from fedfeat_reproduction.figures.runs import finished, seen_test_images
from fedfeat_reproduction.figures.style import COLUMN, GRID, GSA, GSA_NAMES, HEAD, INK, MUTED, TAIL, paper_style

SHOWN = 3  # images of earlier classes, and as many of current ones
PER_CLASS = 100  # test images behind the means
INK_LEVEL = 64  # a digit's own pixels are brighter than this; what is the object in a photograph nobody has marked


def measure(runs: Sequence[RunOutcome]) -> Numbers:
    """Return maps of a few images for the first seed, and means over many test images and all seeds."""
    arrays: dict[str, np.ndarray] = {}
    pictures: list[Row] = []
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in finished(runs):
        method = run.config.method
        trained = load_trained(run.path, device=choose_device("auto"))
        images, labels = seen_test_images(run, trained)
        if f"maps {method}" not in arrays:
            chosen = shown_images(labels, trained.seen.num_old, trained.seen.num_classes)
            arrays["images"] = images[chosen].numpy()
            maps, rows = _pictures(trained, images[chosen], labels[chosen])
            arrays[f"maps {method}"] = maps
            pictures += rows
        for group, means in _means(trained, images, labels).items():
            found.setdefault((method, group), []).append(means)
    rows = [
        {"method": method, "group": group, **means_over_seeds(seeds), "seeds": len(seeds)}
        for (method, group), seeds in sorted(found.items(), key=lambda i: (GSA.index(i[0][0]), i[0][1] != "tail"))
    ]
    return Numbers([*rows, *pictures], arrays)


def shown_images(labels: Tensor, num_old: int, num_classes: int) -> Tensor:
    """Return which images are shown: the first ones of classes spread over the earlier, then over the current ones."""
    chosen = []
    for classes in (range(num_old), range(num_old, num_classes)):
        picked = [classes[number * len(classes) // SHOWN] for number in range(SHOWN)]
        for place, label in enumerate(picked):
            chosen.append((labels == label).nonzero().flatten()[picked[:place].count(label)])
    return torch.stack(chosen)


def _attention(trained: Trained, images: Tensor, labels: Tensor) -> Tensor:
    """Return the maps of images for their labels, a hundred at a time."""
    device = trained.device
    parts = zip(torch.split(images, 100), torch.split(labels, 100), strict=True)
    maps = [attention(trained.network, trained.images.normalise(x.to(device).float()), y.to(device)) for x, y in parts]
    return torch.cat(maps).cpu()


def _pictures(trained: Trained, images: Tensor, labels: Tensor) -> tuple[np.ndarray, list[Row]]:
    """Return maps scaled to their peaks, and what the model says about each image."""
    maps = _attention(trained, images, labels)
    predicted = trained.predict(images, "none")
    rows: list[Row] = [
        {
            "method": trained.method.name,
            "picture": number + 1,
            "group": "tail" if label < trained.seen.num_old else "head",
            "class": trained.class_names[label],
            "predicted": trained.class_names[int(predicted.labels[number])],
            "confidence": float(predicted.probabilities[number, label]),
        }
        for number, label in enumerate(labels.tolist())
    ]
    peaks = maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    return (maps / peaks).numpy().astype(np.float32), rows


def _means(trained: Trained, images: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """Return means over the first test images of each class, for earlier and for current classes."""
    first = torch.cat([(labels == c).nonzero().flatten()[:PER_CLASS] for c in range(trained.seen.num_classes)])
    images, labels = images[first], labels[first]
    maps = _attention(trained, images, labels)
    values = {"spread": spread(maps)}
    if trained.config.data.name == "digits":
        values["on_object"] = on_object(maps, (images > INK_LEVEL).any(dim=3))
    probabilities = trained.predict(images, "none").probabilities.cpu()
    values["confidence"] = probabilities.gather(1, labels[:, None]).squeeze(1)
    groups = {"tail": labels < trained.seen.num_old, "head": labels >= trained.seen.num_old}
    return {g: {name: float(v[rows].double().nanmean()) for name, v in values.items()} for g, rows in groups.items()}


def draw(numbers: Numbers) -> Any:
    """Draw images in columns, and below each its map without and with GSA."""
    methods = [m for m in GSA if f"maps {m}" in numbers.arrays]
    images = numbers.arrays["images"]
    with paper_style() as figure_class:
        height = 0.56 + 0.66 * (1 + len(methods))
        figure = figure_class(figsize=(COLUMN, height))
        spec = figure.add_gridspec(
            1 + len(methods),
            2 * SHOWN + 1,
            width_ratios=[1] * SHOWN + [0.18] + [1] * SHOWN,
            left=0.1,
            right=0.995,
            top=1 - 0.30 / height,
            bottom=0.24 / height,
            wspace=0.06,
            hspace=0.45,
        )
        for column, image in enumerate(images):
            at = column + (column >= SHOWN)
            axes = [figure.add_subplot(spec[row, at]) for row in range(1 + len(methods))]
            _column(axes, image, [numbers.arrays[f"maps {m}"][column] for m in methods])
            told = [next(iter(numbers.where(method=m, picture=column + 1))) for m in methods]
            axes[0].set_title(told[0]["class"], fontsize=7, pad=2)
            for axis, row in zip(axes[1:], told, strict=True):
                _verdict(axis, row)
            if column == 0:
                for axis, name in zip(axes, ["image", *(GSA_NAMES[m] for m in methods)], strict=True):
                    axis.set_ylabel(name, fontsize=6.5, labelpad=2)
            if column % SHOWN == SHOWN // 2:
                name, colour = ("earlier classes", TAIL) if column < SHOWN else ("current classes", HEAD)
                axes[0].text(0.5, 1.36, name, transform=axes[0].transAxes, ha="center", fontsize=8, color=colour)
    return figure


def _column(axes: list[Any], image: np.ndarray, maps: list[np.ndarray]) -> None:
    grey = image.mean(axis=2)
    for axis, attended in zip(axes, [None, *maps], strict=True):
        if attended is None:
            axis.imshow(image if image.shape[2] == 3 else grey, cmap="gray_r" if image.shape[2] == 1 else None)
        else:
            axis.imshow(grey, cmap="gray_r" if image.shape[2] == 1 else "gray", alpha=0.9)
            axis.imshow(attended, cmap="inferno", vmin=0, vmax=1, alpha=0.78 * attended, interpolation="bilinear")
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        axis.spines[:].set(visible=True, color=GRID, lw=0.5)


def _verdict(axis: Any, row: Row) -> None:
    right = row["predicted"] == row["class"]
    text = f"{row['confidence']:.2f}" if right else f"{row['confidence']:.2f}\n{row['predicted']}"
    axis.set_xlabel(text, fontsize=6.2, labelpad=1, linespacing=0.9, color=INK if right else MUTED)


def findings(numbers: Numbers) -> list[Finding]:
    """Compare with what the paper says about attention."""
    means = {(r["method"], r["group"]): r for r in numbers.rows if "picture" not in r}
    if len(means) < 4:
        return []
    found = []
    for group, claim in (
        ("tail", "earlier classes: attention is tighter with GSA"),
        ("head", "current classes: attention is tighter with GSA, too"),
    ):
        before, after = (means[method, group]["spread"] for method in GSA)
        seen = f"share of the image that it fills: without {before:.3f}, with {after:.3f}"
        found.append(Finding(claim, seen, after < before))
    if "on_object" in means[GSA[0], "tail"]:
        before, after = (means[method, "tail"]["on_object"] for method in GSA)
        seen = f"share of attention on the digit: without {before:.3f}, with {after:.3f}"
        found.append(Finding("earlier classes: attention lies more on the object with GSA", seen, after > before))
    before, after = (means[method, "head"]["confidence"] for method in GSA)
    seen = f"mean probability of the true class: without {before:.3f}, with {after:.3f}"
    found.append(Finding("current classes: confidence grows with GSA", seen, after > before))
    return found


def grad_cam(maps: Tensor, gradients: Tensor) -> Tensor:
    """Return ``relu(sum_k a_k A_k)`` per image, [B, H, W]: each map ``A_k`` counts by its mean gradient ``a_k``.

    :param maps: [B, K, H, W], activations of one layer.
    :param gradients: of each image's class score by those activations, the same shape.
    """
    weights = gradients.mean(dim=(2, 3), keepdim=True)
    return F.relu((weights * maps).sum(dim=1))


def attention(network: Network, images: Tensor, classes: Tensor) -> Tensor:
    """Return Grad-CAM of each image for its class, from the last feature maps, stretched to the image's size."""
    maps = last_maps(network, images).requires_grad_()
    with torch.enable_grad():
        logits = network.head(network.head.feature(pool(maps)))
        (gradients,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), maps)
    cam = grad_cam(maps.detach(), gradients)
    return F.interpolate(cam[:, None], images.shape[2:], mode="bilinear", align_corners=False).squeeze(1)


@torch.no_grad()
def last_maps(network: Network, images: Tensor) -> Tensor:
    """Return the feature maps whose average over all places is the feature, [B, K, H, W]."""
    assert not isinstance(network.backbone, PretrainedBackbone), "the paper's figures are of ResNet-18"
    with network.reduced_precision(images):
        return network.backbone.maps(images).float()


def spread(maps: Tensor) -> Tensor:
    """Return the share of the image that attention fills, in (0, 1]: the exponential of its entropy over all places.

    One for attention that is everywhere the same, ``1 / (H W)`` for a single place; nan where there is none at all.
    """
    shares = maps.flatten(1).double()
    shares = shares / shares.sum(dim=1, keepdim=True)
    entropy: Tensor = torch.special.entr(shares).sum(dim=1)
    return entropy.exp() / math.prod(maps.shape[1:])


def on_object(maps: Tensor, objects: Tensor) -> Tensor:
    """Return the share of attention that falls on the object, given as a mask of each image; nan without attention."""
    flat = maps.flatten(1).double()
    return (flat * objects.flatten(1)).sum(dim=1) / flat.sum(dim=1)


FIGURE = PaperFigure(
    "figure-9",
    "Attention maps of earlier and current classes, without and with GSA",
    "Grad-CAM of the last feature maps for the true class, after the last task, scaled to its peak. The images are the "
    "first test images of their classes, not chosen by look. Below each map: probability of the true class, and the "
    "prediction in brackets where it is another.",
    without_and_with_gsa,
    measure,
    draw,
    findings,
    objection=without_earlier_classes,
)
