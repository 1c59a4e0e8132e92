"""Generators: from a code, or from a class's anchor through noisy layers, to images in 0..1."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ImageShape = tuple[int, int, int]  # height, width, channels
WIDTH = 64
SHARE = 10  # consecutive samples of a batch that one noisy layer serves, at most


class ImageGenerator(nn.Module):
    """Codes [B, inputs] to images [B, C, H, W]: a linear layer to a quarter of the size, doubled twice.

    Sizes that four does not divide are made a little too large and cut.
    """

    def __init__(self, inputs: int, image_shape: ImageShape) -> None:
        super().__init__()
        height, width, channels = image_shape
        self.size = height, width
        self.quarter = -(-height // 4), -(-width // 4)
        self.linear = nn.Linear(inputs, 2 * WIDTH * self.quarter[0] * self.quarter[1])
        self.layers = nn.Sequential(
            nn.BatchNorm2d(2 * WIDTH),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, 1, 1, bias=False),
            nn.BatchNorm2d(2 * WIDTH),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * WIDTH, WIDTH, 3, 1, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.LeakyReLU(0.2),
            nn.Conv2d(WIDTH, channels, 3, 1, 1),
            nn.Sigmoid(),
        )

    def forward(self, codes: Tensor) -> Tensor:
        """Return images."""
        maps = self.linear(codes).view(len(codes), 2 * WIDTH, *self.quarter)
        images: Tensor = self.layers(maps)[:, :, : self.size[0], : self.size[1]]
        return images


class NoisyLinears(nn.Module):
    """Linear layers side by side, each for the next few samples of a batch, drawn anew whenever one asks."""

    def __init__(self, inputs: int, outputs: int, batch: int, share: int = SHARE) -> None:
        super().__init__()
        self.share = share
        count = -(-batch // share)
        self.weight = nn.Parameter(torch.zeros(count, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))

    @torch.no_grad()
    def redraw(self, rng: np.random.Generator) -> None:
        """Draw all weights from N(0, 1) and forget the biases."""
        self.weight.copy_(torch.from_numpy(rng.standard_normal(tuple(self.weight.shape), dtype=np.float32)))
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs] to [B, outputs]; B is at most the batch that the layers were made for."""
        count = len(self.weight)
        groups = F.pad(x, (0, 0, 0, count * self.share - len(x))).view(count, self.share, -1)
        return torch.baddbmm(self.bias, groups, self.weight).flatten(0, 1)[: len(x)]


class AnchorGenerator(nn.Module):
    """Anchors [B, d] of the wanted classes to images; the noisy layers are the only source of variety.

    One layer makes the same image of a class every time, so it serves no more samples than there are classes.
    """

    def __init__(self, dim: int, code: int, batch: int, image_shape: ImageShape, classes: int = SHARE) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.noise = NoisyLinears(dim, code, batch, min(classes, SHARE))
        self.images = ImageGenerator(code, image_shape)

    def forward(self, anchors: Tensor) -> Tensor:
        """Return images [B, C, H, W] in 0..1."""
        images: Tensor = self.images(self.noise(self.norm(anchors)))
        return images
