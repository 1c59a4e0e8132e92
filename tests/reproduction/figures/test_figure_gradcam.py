"""Grad-CAM on networks whose answer is known."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.models import ETFHead, LinearHead, Network
from fedfeat.models.backbones import ResNet, SmallCNN, for_both, pool
from fedfeat.models.network import Backbone
from fedfeat_reproduction.figures.attention_maps import attention, grad_cam, on_object, spread


class BrightAndDark(nn.Module):
    """Two maps: what is above zero, and what is below."""

    feature_dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 1, bias=False)
        self.layer.weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)

    def maps(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x))

    def forward(self, x: Tensor) -> Tensor:
        return pool(self.maps(x))


def bright_and_dark() -> Network:
    head = LinearHead(2, seed=0)
    head.weight = nn.Parameter(torch.tensor([[3.0, 0.0], [0.0, 5.0], [-1.0, -1.0]]))
    head.bias = nn.Parameter(torch.zeros(3))
    return Network(cast(Backbone, BrightAndDark()), head)


def test_weights_are_mean_gradients_and_negative_evidence_is_dropped() -> None:
    maps = torch.tensor([[[[1.0, 2.0], [0.0, 4.0]], [[1.0, 0.0], [3.0, 0.0]]]])
    gradients = torch.tensor([[[[4.0, 0.0], [0.0, 0.0]], [[-2.0, -2.0], [-2.0, -2.0]]]])
    assert grad_cam(maps, gradients).tolist() == [[[0.0, 2.0], [0.0, 4.0]]]  # weights 1 and -2


def test_each_class_looks_where_its_evidence_is() -> None:
    image = torch.zeros(4, 4)
    image[0, 0], image[3, 2] = 8.0, -2.0
    images = image.expand(3, 1, 4, 4)
    found = attention(bright_and_dark(), images, torch.tensor([0, 1, 2]))
    bright, dark = torch.zeros(4, 4), torch.zeros(4, 4)
    bright[0, 0], dark[3, 2] = 3 / 16 * 8, 5 / 16 * 2  # the head's weight, spread over sixteen places
    assert torch.allclose(found, torch.stack([bright, dark, torch.zeros(4, 4)]))


@pytest.mark.parametrize("channels", [1, 3])
def test_real_backbones_give_the_class_activation_map(channels: int) -> None:
    """With average pooling and a linear head, Grad-CAM is the head's row times the maps before pooling."""
    torch.manual_seed(0)
    backbone: Any = SmallCNN(1, width=4) if channels == 1 else ResNet(3)
    head = ETFHead(backbone.feature_dim, seed=1)
    head.grow(5)
    network = Network(backbone, head).eval()
    images = torch.randn(2, channels, 16, 16)
    classes = torch.tensor([1, 4])
    maps = _last_maps(backbone, images)
    expected = F.relu(torch.einsum("bkhw,bk->bhw", maps, head.prototypes.T[classes])) / maps[0, 0].numel()
    expected = F.interpolate(expected[:, None], (16, 16), mode="bilinear", align_corners=False)[:, 0]
    found = attention(network, images, classes)
    assert torch.allclose(found, expected, atol=1e-6)
    assert found.max() > 0


def _last_maps(backbone: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        if isinstance(backbone, ResNet):
            first = for_both(backbone.shrink(F.relu(backbone.stem(x))), 1)
            return backbone.stages(first).whole
        for number, layer in enumerate(backbone.layers):
            x = F.relu(layer(F.max_pool2d(x, 2) if number == 2 else x))
        return x


def test_looking_leaves_the_network_as_it_was() -> None:
    network = bright_and_dark().requires_grad_(False)
    image = torch.randn(1, 1, 4, 4)
    before = network(image).logits
    with torch.no_grad():
        attention(network, image, torch.tensor([0]))
    assert torch.equal(network(image).logits, before)
    assert all(p.grad is None for p in network.parameters())


def test_spread_and_share_on_the_object() -> None:
    even, point, half = torch.ones(4, 4), torch.zeros(4, 4), torch.zeros(4, 4)
    point[2, 1], half[:2] = 7.0, 0.3
    found = spread(torch.stack([even, point, half, torch.zeros(4, 4)]))
    assert found[:3].tolist() == pytest.approx([1.0, 1 / 16, 0.5])
    assert found[3].isnan()
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[0] = True
    assert on_object(torch.stack([even, point, half]), mask.expand(3, 4, 4)).tolist() == pytest.approx([0.25, 0, 0.5])
