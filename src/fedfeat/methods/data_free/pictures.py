"""A look at the pool: one row of pictures per class."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.core.errors import MissingExtra
from fedfeat.core.files import write_atomically

COLUMNS = 12
MOST_ROWS = 100
LEAST_PIXELS = 48  # small images are enlarged to about this size
GAP = 2
PAPER = 255


def class_grid(images: Tensor, labels: Tensor, num_classes: int, columns: int = COLUMNS) -> np.ndarray:
    """Arrange the newest images of each class in a row of its own: uint8 [H, W, C], missing ones left white."""
    _, height, width, channels = images.shape
    zoom = max(1, round(LEAST_PIXELS / max(height, width)))
    cell = height * zoom + GAP, width * zoom + GAP
    rows = min(num_classes, MOST_ROWS)
    grid = np.full((rows * cell[0] + GAP, columns * cell[1] + GAP, channels), PAPER, dtype=np.uint8)
    for row in range(rows):
        newest = torch.nonzero(labels == row).flatten()[-columns:]
        for column, image in enumerate(images[newest].cpu().numpy()):
            top, left = row * cell[0] + GAP, column * cell[1] + GAP
            large = image.repeat(zoom, axis=0).repeat(zoom, axis=1)
            grid[top : top + height * zoom, left : left + width * zoom] = large
    return grid


def write_picture(path: Path, grid: np.ndarray) -> None:
    """Write a PNG; without Pillow say so and go on, since nothing else depends on it."""
    try:
        image = _require_pillow()
    except MissingExtra as error:
        warnings.warn(f"{path}: not written; {error}", stacklevel=2)
        return
    buffer = io.BytesIO()
    image.fromarray(grid[..., 0] if grid.shape[2] == 1 else grid).save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())


def _require_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "images", "writing pictures") from error
    return Image
