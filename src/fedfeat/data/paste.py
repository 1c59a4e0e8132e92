"""Replayed images that change each time they are loaded: shrunk and pasted on a recoloured copy of themselves."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

SCALES = (0.8, 0.85, 0.9, 0.95)  # of height and of width
JITTER = 0.6  # of brightness, contrast and saturation
HUE = 0.4
COLUMNS = 9  # whether, scales of height and width, row and column, brightness, contrast, saturation, hue
LUMINANCE = (0.299, 0.587, 0.114)


def plan_pastes(rng: np.random.Generator, replayed: NDArray[np.bool_], probability: float) -> Tensor:
    """Draw what happens to each image of an epoch, [n, 9]; only replayed ones are changed."""
    count = len(replayed)
    changed = (rng.random(count) < probability) & replayed
    drawn = (
        changed[:, None],
        rng.choice(SCALES, (count, 2)),
        rng.random((count, 2)),
        rng.uniform(1 - JITTER, 1 + JITTER, (count, 3)),
        rng.uniform(-HUE, HUE, (count, 1)),
    )
    return torch.from_numpy(np.concatenate(drawn, axis=1).astype(np.float32))


def pasted(images: Tensor, pastes: Tensor) -> Tensor:
    """Return images [B, H, W, C] in 0..255, some of them shrunk and pasted on a recoloured copy of themselves.

    Nothing here waits for the device or branches on a tensor's value.
    """
    count, height, width, _ = images.shape
    pixels = images.float()
    y, rows = _placed(height, pastes[:, 1], pastes[:, 3])
    x, columns = _placed(width, pastes[:, 2], pastes[:, 4])
    whole = count, height, width
    grid = torch.stack([x[:, None, :].expand(whole), y[:, :, None].expand(whole)], dim=-1)
    small = F.grid_sample(
        pixels.permute(0, 3, 1, 2), grid, mode="bilinear", padding_mode="border", align_corners=False
    ).permute(0, 2, 3, 1)
    inside = (rows[:, :, None] & columns[:, None, :])[..., None]
    changed = torch.where(inside, small, recoloured(pixels, pastes[:, 5:]))
    return torch.where(pastes[:, 0, None, None, None] > 0, changed.round(), pixels)


def _placed(length: int, scale: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each pixel of a side lies in the shrunk image, on the scale -1 to 1, and whether it lies in it."""
    size = (length * scale + 1e-3).floor().clamp(min=1)
    begin = (place * (length - size + 1)).floor().clamp(max=length - 1)
    pixel = torch.arange(length, device=scale.device) + 0.5
    where = (pixel - begin[:, None]) / size[:, None] * 2 - 1
    return where, where.abs() < 1


def recoloured(pixels: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue, in this order; grey images have no saturation and no hue."""
    brightness, contrast, saturation, hue = factors[:, :, None, None, None].unbind(dim=1)
    pixels = (pixels * brightness).clamp(max=255)
    pixels = blended(pixels, grey(pixels).mean(dim=(1, 2), keepdim=True), contrast)
    if pixels.shape[-1] != len(LUMINANCE):
        return pixels
    return _turned(blended(pixels, grey(pixels), saturation), hue[..., 0])


def blended(pixels: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Return a mixture of two images, of both or, with a share above one, away from the other."""
    return (pixels * share + other * (1 - share)).clamp(0, 255)


def grey(pixels: Tensor) -> Tensor:
    """Return the luminance of images [..., C], with one channel."""
    if pixels.shape[-1] != len(LUMINANCE):
        return pixels.mean(dim=-1, keepdim=True)
    return sum((pixels[..., c : c + 1] * share for c, share in enumerate(LUMINANCE)), torch.zeros_like(pixels[..., :1]))


def _turned(pixels: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue, [B, H, W] or what broadcasts to it, by a share of the circle."""
    value, low = pixels.amax(dim=-1), pixels.amin(dim=-1)
    chroma = value - low
    red, green, blue = (pixels / chroma.clamp(min=1e-6)[..., None]).unbind(dim=-1)
    top = pixels.argmax(dim=-1)
    hue = torch.where(top == 0, green - blue, torch.where(top == 1, 2 + blue - red, 4 + red - green))
    hue = hue + 6 * turn
    sides = []
    for number in (5, 3, 1):
        at = torch.remainder(number + hue, 6)
        sides.append(value - chroma * torch.minimum(at, 4 - at).clamp(0, 1))
    return torch.stack(sides, dim=-1)
