"""The baseline of every ratio: one ResNet-18, one process, eager PyTorch, no federation."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.data.augment import DeviceImages, crop_and_flip
from fedfeat.models.backbones import ResNet18


class BareLoop:
    """Training as one writes it by hand, with what everybody knows: bytes on the device, bf16, channels last."""

    def __init__(self, images: DeviceImages, num_classes: int, *, batch: int, bf16: bool) -> None:
        self.images, self.batch, self.bf16 = images, batch, bf16
        backbone = ResNet18(images.images.shape[-1])
        self.model = nn.Sequential(backbone, nn.Linear(backbone.feature_dim, num_classes)).to(images.device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.04, momentum=0.9, weight_decay=1e-5)

    def images_per_second(self, steps: int, warm_up: int = 20) -> float:
        """Return the speed over a number of steps."""
        order = torch.randperm(len(self.images), device=self.images.device)
        batches = [order[i : i + self.batch] for i in range(0, len(order) - self.batch + 1, self.batch)]
        self.model.train()
        for number in range(warm_up):
            self.step(batches[number % len(batches)])
        torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(steps):
            self.step(batches[number % len(batches)])
        torch.cuda.synchronize()
        return steps * self.batch / (time.perf_counter() - started)

    def step(self, indices: Tensor) -> None:
        """Train on one batch."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16):
            logits = self.model(self.augmented(indices))
        loss = F.cross_entropy(logits.float(), self.images.labels[indices])
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def augmented(self, indices: Tensor) -> Tensor:
        """Return the batch, cropped, mirrored and normalised on the device."""
        device, padding = self.images.device, 4
        crops = torch.randint(0, 2 * padding + 1, (len(indices), 2), device=device)
        flips = torch.rand(len(indices), device=device) < 0.5
        return self.images.normalise(crop_and_flip(self.images.images[indices], crops, flips, padding).float())
