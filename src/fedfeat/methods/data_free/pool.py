"""The synthetic pool: 8-bit images on the server, endless batches of them wherever a model learns from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.augment import DeviceImages, EpochPlan, crop_and_flip, plan_epoch
from fedfeat.data.dataset import Augmentation

POOL = "synthetic_pool"  # the name under which clients receive it


def quantised(images: Tensor) -> Tensor:
    """Turn images [B, C, H, W] in 0..1 into bytes [B, H, W, C], truncating as a PNG writer does."""
    return (images.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


@dataclass
class Pool:
    """What the server has made so far; the labels it aimed at never leave it."""

    batches: list[Tensor] = field(default_factory=list)
    aims: list[Tensor] = field(default_factory=list)

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Store a batch in 8 bits."""
        self.batches.append(quantised(images))
        self.aims.append(labels)

    @property
    def images(self) -> Tensor:
        """All images, uint8 [N, H, W, C]."""
        return torch.cat(self.batches)

    @property
    def labels(self) -> Tensor:
        """The classes that the generator aimed at, [N]."""
        return torch.cat(self.aims)


def varied(pixels: Tensor, crops: Tensor, flips: Tensor, augmentation: Augmentation) -> Tensor:
    """Crop and flip images [B, H, W, C] as the data set's own are; their brightness is left alone."""
    if not (augmentation.crop_padding or augmentation.flip):
        return pixels
    return crop_and_flip(pixels, crops, flips, augmentation.crop_padding)


def draw_passes(
    count: int, size: int, augmentation: Augmentation, draw: Callable[[int], np.random.Generator]
) -> Iterator[EpochPlan]:
    """Yield the draws of one pass over a pool after the other, for ever; ``draw(pass)`` gives a pass its draws.

    What is left at the end of a pass and would not fill a batch of ``size`` is skipped.
    """
    used = count // size * size
    for number in itertools.count():
        draws = plan_epoch(draw(number), count, replace(augmentation, brightness=0.0))
        yield EpochPlan(*(values[:used] for values in draws))


def endless_batches(
    pool: Tensor, batch: int, images: DeviceImages, draw: Callable[[int], np.random.Generator]
) -> Iterator[Tensor]:
    """Yield normalised batches of one fixed size for ever, in a new order on every pass."""
    size = min(batch, len(pool))
    for draws in draw_passes(len(pool), size, images.augmentation, draw):
        order = draws.order.to(pool.device)
        for start in range(0, len(order), size):
            visited = slice(start, start + size)
            pixels = varied(pool[order[visited]], draws.crops[visited], draws.flips[visited], images.augmentation)
            yield images.normalise(pixels.float())


def draw_batches(
    count: int, size: int, batches: int, augmentation: Augmentation, draw: Callable[[int], np.random.Generator]
) -> EpochPlan:
    """Return the draws of so many batches in one row: the same that endless batches make as they go."""
    passes = itertools.islice(draw_passes(count, size, augmentation, draw), math.ceil(batches / (count // size)))
    return EpochPlan(*(torch.cat(values)[: batches * size] for values in zip(*passes, strict=True)))
