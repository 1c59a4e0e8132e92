"""What the GPU could do at best: its measured matrix throughput over the operations of one image."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedfeat.models import Network

SIDE = 8192
REPEATS = 5


def matrix_peak(device: torch.device, precision: str) -> float:
    """Return the operations per second of a large matrix product in the given precision, measured."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, SIDE, SIDE, device=device, dtype=dtype)
    out = left @ right
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    started.record()
    for _ in range(REPEATS):
        torch.mm(left, right, out=out)
    ended.record()
    torch.cuda.synchronize(device)
    seconds: float = started.elapsed_time(ended) / 1e3 / REPEATS
    return 2 * SIDE**3 / seconds


@torch.no_grad()
def flops_per_image(network: Network, image_shape: Sequence[int]) -> float:
    """Return the operations of one forward pass of the backbone on one image; training takes three times that."""
    height, width, channels = image_shape
    backbone = copy.deepcopy(network.backbone).eval().cpu()
    counted: list[float] = []

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counted.append(2.0 * out.numel() * weight[0].numel())

    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    backbone(torch.zeros(1, channels, height, width))
    return sum(counted)
