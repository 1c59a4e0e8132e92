"""Differentiable siamese augmentation (Zhao and Bilen, ICML 2021): one strategy per call, its own draw per image."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

CROP, CUTOUT, SCALE, DEGREES = 0.125, 0.5, 1.2, 15.0
BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5


def augment(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Apply one random strategy of six to normalised images [B, C, H, W]."""
    strategy = (colour, crop, cutout, flip, scale, rotate)[int(rng.integers(6))]
    return strategy(images, rng)


def colour(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Shift brightness, then spread or shrink around each pixel's grey value, then around the image's mean."""
    bright, saturated, contrasted = (_column(rng.random(len(images)), images)[..., None, None] for _ in range(3))
    out = images + (bright - 0.5) * BRIGHTNESS
    grey = out.mean(dim=1, keepdim=True)
    out = (out - grey) * (saturated * SATURATION) + grey
    mean = out.mean(dim=(1, 2, 3), keepdim=True)
    return (out - mean) * (contrasted + CONTRAST) + mean


def crop(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Move images by up to an eighth of their size; what comes in is zero."""
    count, _, height, width = images.shape
    steps = [int(size * CROP + 0.5) for size in (height, width)]
    moves = [torch.from_numpy(rng.integers(-s, s + 1, count)).to(images.device) for s in steps]
    rows = torch.arange(height, device=images.device) + moves[0][:, None] + steps[0]
    columns = torch.arange(width, device=images.device) + moves[1][:, None] + steps[1]
    padded = F.pad(images, (steps[1], steps[1], steps[0], steps[0])).permute(0, 2, 3, 1)
    sample = torch.arange(count, device=images.device)[:, None, None]
    return padded[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cutout(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Blank a rectangle of half the height and width around a random place."""
    count, _, height, width = images.shape
    inside = []
    for size in (height, width):
        half = int(size * CUTOUT + 0.5) / 2
        centre = torch.from_numpy(rng.integers(0, size + 1, count)).to(images.device)[:, None]
        places = torch.arange(size, device=images.device)
        inside.append((places >= centre - half) & (places < centre + half))
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return images.masked_fill(hole, 0.0)


def flip(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Mirror every second image, on average."""
    mirrored = torch.from_numpy(rng.random(len(images)) < 0.5).to(images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def scale(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Stretch both axes by factors between 1/1.2 and 1.2."""
    factors = _column(rng.uniform(1 / SCALE, SCALE, (len(images), 2)), images)
    matrices = images.new_zeros(len(images), 2, 3)
    matrices[:, 0, 0], matrices[:, 1, 1] = factors[:, 0, 0], factors[:, 1, 0]
    return _warped(images, matrices)


def rotate(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Turn by up to 15 degrees."""
    angle = _column(rng.uniform(-1.0, 1.0, len(images)) * DEGREES * math.pi / 180, images)[:, 0]
    matrices = images.new_zeros(len(images), 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = torch.cos(angle)
    matrices[:, 0, 1], matrices[:, 1, 0] = -torch.sin(angle), torch.sin(angle)
    return _warped(images, matrices)


def _warped(images: Tensor, matrices: Tensor) -> Tensor:
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    """Return draws as [B, ..., 1] numbers of the images' kind."""
    return torch.from_numpy(values.astype(np.float32)).to(like)[..., None]
