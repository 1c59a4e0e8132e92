"""The convolutions that are written another way for the GPU give the same sums."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedfeat.models.backbones import ResNet, by_patches, for_both


@pytest.mark.parametrize("wide_stem", [False, True])
def test_the_stem_as_a_matrix_product(wide_stem: bool) -> None:
    torch.manual_seed(0)
    conv = ResNet(3, wide_stem=wide_stem).stem[0]
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    conv.double()
    product = by_patches(images, conv)
    torch.testing.assert_close(product, conv(images), rtol=0, atol=1e-12)
    assert product.is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(product.square().sum(), conv.weight)
    (expected,) = torch.autograd.grad(conv(images).square().sum(), conv.weight)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_shortcut_skips_pixels_as_a_strided_convolution_does(stride: int) -> None:
    torch.manual_seed(0)
    projection, strided = nn.Conv2d(4, 6, 1, bias=False), nn.Conv2d(4, 6, 1, stride, bias=False)
    strided.load_state_dict(projection.state_dict())
    for size in (8, 7):
        images = torch.randn(2, 4, size, size)
        torch.testing.assert_close(projection(for_both(images, stride).thin), strided(images))
