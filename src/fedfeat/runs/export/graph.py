"""What an exported file computes: from raw pixels to corrected logits, without this project at hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedfeat.models import Network, PretrainedBackbone
from fedfeat.runs.trained import Trained

INPUT = "images"
OUTPUTS = ("logits", "probabilities")


class PredictionGraph(nn.Module):
    """Normalisation, network and correction in one module: uint8 [N, H, W, C] to logits and probabilities [N, C]."""

    def __init__(self, trained: Trained, correction: str) -> None:
        super().__init__()
        self.network = _independent(trained.network)
        self.trained = replace(trained, network=self.network)
        self.prediction = trained.correction(correction)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and their softmax."""
        logits = self.trained.logits(images, self.prediction)
        return logits, logits.softmax(dim=1)

    def example(self, count: int) -> Tensor:
        """Return images to trace and to check with: coarse patches, noise, and all black and all white ones."""
        height, width, channels = self.trained.image_shape
        generator = torch.Generator().manual_seed(count)
        coarse = torch.randint(0, 256, (count, channels, 4, 4), generator=generator, dtype=torch.uint8).float()
        patches = nn.functional.interpolate(coarse, (height, width), mode="bilinear").permute(0, 2, 3, 1)
        noise = torch.randint(-40, 41, patches.shape, generator=generator)
        images = (patches + noise).clamp(0, 255)
        if count >= 3:
            images[0], images[1] = 0, 255
        return images.to(torch.uint8)


def _independent(network: Network) -> Network:
    """Return a copy whose tensors are not views into one vector, which files would store in full for each.

    Adapters become part of the layers that they sit on.
    """
    twin = copy.deepcopy(network)
    if isinstance(twin.backbone, PretrainedBackbone):
        twin.backbone = twin.backbone.merged()
    for tensor in (*twin.parameters(), *twin.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return twin
