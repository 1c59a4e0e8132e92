"""Operations of a network, which the share of the GPU's peak is taken of."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedfeat.engines.cuda.roofline import flops_per_image
from fedfeat.models import LinearHead, ModelSettings, build_network


@pytest.mark.parametrize(
    ("shape", "expected"), [((32, 32, 3), 1_110_835_200.0), ((64, 64, 3), None), ((8, 8, 1), None)]
)
def test_operations_are_those_that_pytorch_counts(shape: tuple[int, int, int], expected: float | None) -> None:
    network = build_network(
        ModelSettings(), shape, lambda dim, seed, classes: LinearHead(dim, seed=seed), seed=0, num_classes=4
    )
    height, width, channels = shape
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.backbone(torch.zeros(1, channels, height, width))
    ours = flops_per_image(network, shape)
    assert ours == counter.get_total_flops()
    assert expected is None or ours == expected
    assert network.training
    assert not any(m._forward_hooks for m in network.modules())
