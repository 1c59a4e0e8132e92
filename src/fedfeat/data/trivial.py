"""TrivialAugment (Müller and Hutter, ICCV 2021): one operation per image, drawn at random, with a random strength."""

from __future__ import annotations

from math import pi

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.paste import blended, grey

OPERATIONS = (
    "identity", "shear x", "shear y", "translate x", "translate y", "rotate",
    "brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize", "colour", "sharpness",
)  # fmt: skip
COLUMNS = 2  # which operation, and how strong, from -1 to 1
STRENGTHS = 31
SHEAR, TURN, ENHANCE = 0.99, 0.75 * pi, 0.99  # at strength 1; images are moved by as much as they are wide
SMOOTH = 1 / 13  # share of each neighbour in a smooth image, five times as much for the pixel itself


def plan_trivial(rng: np.random.Generator, count: int, strength: float) -> Tensor:
    """Draw an operation and its strength for each of ``count`` images, at most ``strength`` in size."""
    sizes = strength * rng.integers(STRENGTHS, size=count) / (STRENGTHS - 1)
    drawn = rng.integers(len(OPERATIONS), size=count), sizes * rng.choice((-1.0, 1.0), count)
    return torch.from_numpy(np.stack(drawn, axis=1).astype(np.float32))


def trivially_augmented(images: Tensor, plan: Tensor) -> Tensor:
    """Return images [B, H, W, C] of whole numbers in 0..255, each changed by its operation and strength [B, 2].

    Nothing here waits for the device or branches on a tensor's value.
    """
    operation, strength = plan.unbind(dim=1)
    is_op = {name: operation == number for number, name in enumerate(OPERATIONS)}
    images = _moved(images, is_op, strength)
    pixels = images.float()
    tables = _tables(images.long(), pixels, is_op, strength)
    changed = tables.gather(2, images.long().flatten(1, 2).mT).mT.view_as(pixels)
    factor = (1 + ENHANCE * strength)[:, None, None, None]
    changed = torch.where(_each(is_op["colour"]), blended(pixels, grey(pixels), factor), changed)
    return torch.where(_each(is_op["sharpness"]), blended(pixels, _smooth(pixels), factor), changed)


def _each(chosen: Tensor) -> Tensor:
    return chosen[:, None, None, None]


def _moved(images: Tensor, is_op: dict[str, Tensor], strength: Tensor) -> Tensor:
    """Shear, shift and turn around the centre; each pixel is that which lies nearest, and zero outside."""
    count, height, width, _ = images.shape
    zero = torch.zeros_like(strength)

    def only(name: str, value: Tensor) -> Tensor:
        return torch.where(is_op[name], value, zero)[:, None, None]

    angle = only("rotate", TURN * strength)
    y = torch.arange(height, device=images.device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    columns = x * angle.cos() - y * angle.sin() + only("shear x", SHEAR * strength) * y
    rows = x * angle.sin() + y * angle.cos() + only("shear y", SHEAR * strength) * x
    columns = (columns + only("translate x", width * strength) + (width - 1) / 2).round().long()
    rows = (rows + only("translate y", height * strength) + (height - 1) / 2).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    sample = torch.arange(count, device=images.device)[:, None, None]
    return images[sample, rows.clamp(0, height - 1), columns.clamp(0, width - 1)] * inside[..., None]


def _tables(images: Tensor, pixels: Tensor, is_op: dict[str, Tensor], strength: Tensor) -> Tensor:
    """Return what every value of a channel becomes, [B, C, 256], by the operations that need know no more."""
    value = torch.arange(256.0, device=images.device)
    strength = strength[:, None, None]
    factor, size = 1 + ENHANCE * strength, strength.abs()
    counts = _counts(images)
    there = counts > 0
    low = torch.where(there, value, 255.0).amin(dim=-1, keepdim=True)
    high = torch.where(there, value, 0.0).amax(dim=-1, keepdim=True)
    step = 2.0 ** (6 * size).round()
    found = {
        "brightness": value * factor,
        "contrast": blended(value, grey(pixels).mean(dim=(1, 2)).round()[..., None], factor),
        "posterize": (value / step).floor() * step,
        "solarize": torch.where(value < 256 * (1 - size), value, 255 - value),
        "autocontrast": torch.where(high > low, (value - low) * 255 / (high - low).clamp(min=1), value),
        "equalize": _equalised(counts, high, value),
    }
    tables = value.expand(len(images), images.shape[-1], 256)
    for name, table in found.items():
        tables = torch.where(is_op[name][:, None, None], table, tables)
    return tables.clamp(0, 255)


def _counts(images: Tensor) -> Tensor:
    """Return how many pixels of a channel have each value, [B, C, 256]."""
    values = images.flatten(1, 2).mT
    counts = values.new_zeros(*values.shape[:2], 256)
    return counts.scatter_add_(2, values, torch.ones_like(values))  # whole numbers: in any order the same


def _equalised(counts: Tensor, high: Tensor, value: Tensor) -> Tensor:
    """Return the table that makes all values about as frequent; unchanged where all but the last are too few."""
    step = (counts.sum(dim=-1, keepdim=True) - counts.gather(2, high.long())) // 255
    before = counts.cumsum(dim=-1) - counts
    return torch.where(step > 0, (step // 2 + before) // step.clamp(min=1), value)


def _smooth(pixels: Tensor) -> Tensor:
    """Return images with each pixel averaged with its neighbours; those at the edge stay."""
    inner = 4 * pixels[:, 1:-1, 1:-1]
    height, width = pixels.shape[1:3]
    for row in range(3):
        for column in range(3):
            inner = inner + pixels[:, row : row + height - 2, column : column + width - 2]
    smooth = pixels.clone()
    smooth[:, 1:-1, 1:-1] = SMOOTH * inner
    return smooth
