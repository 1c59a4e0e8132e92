"""Folded networks say what the networks say that they were folded from, and follow the weights that are loaded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedfeat.engines.base import FrozenNetworks
from fedfeat.engines.cuda.folded import FoldedConvolution, FoldedNetworks, fold
from fedfeat.models import FlatModel, LinearHead, Network
from fedfeat.models.backbones import BatchNorm, ResNet, SmallCNN
from fedfeat.runs.experiment import Experiment
from fedfeat.scenario import Scenario
from toy import toy_config, toy_dataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def folded(backbone: nn.Module) -> int:
    return sum(isinstance(m.folded, FoldedConvolution) for m in backbone.modules() if isinstance(m, BatchNorm))


def network_of(name: str, signed: bool = False) -> Network:
    backbone = SmallCNN(3, width=16, signed=signed) if name == "small-cnn" else ResNet(3, name=name, signed=signed)
    network = Network(backbone, LinearHead(backbone.feature_dim, seed=0))
    network.autocast = torch.bfloat16
    return network.to(DEVICE)


@pytest.fixture
def scenario() -> Scenario:
    return Experiment(toy_config("fedlwf"), toy_dataset()).scenario


def vector_of(network: Network, scenario: Scenario, seed: int) -> Tensor:
    """Return weights and running statistics as after some training."""
    network.head.grow(scenario.seen_classes(0), 0)
    model = FlatModel(network)
    generator = torch.Generator().manual_seed(seed)
    for name, value in network.named_parameters():
        scale = 1.0 if value.dim() == 1 else 2 / value[0].numel() ** 0.5
        drawn = scale * torch.randn(value.shape, generator=generator)
        value.data.copy_(1 + 0.3 * drawn if "norm" in name and "weight" in name else drawn)
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.running_mean.copy_(0.3 * torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))
    return model.vector.clone()


def spoil_free_memory() -> None:
    """Leave what is no number where the next tensors will lie: cuDNN is told to add none of it."""
    [torch.full((1 << 18,), torch.nan, device=DEVICE) for _ in range(64)]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("name", "convolutions"), [("small-cnn", 3), ("resnet18", 16), ("resnet50", 48)])
@torch.no_grad()
def test_a_folded_network_agrees_and_follows_its_weights(
    name: str, convolutions: int, signed: bool, scenario: Scenario
) -> None:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    plain = FrozenNetworks(lambda: network_of(name, signed), scenario)
    ours = FoldedNetworks(FrozenNetworks(lambda: fold(network_of(name, signed)), scenario))
    first, second = (vector_of(network_of(name), scenario, seed) for seed in (1, 2))
    networks = []
    for vector in (first, second, second):
        expected = plain("teacher", vector, 0).features(images).float()
        networks.append(ours("teacher", vector, 0))
        spoil_free_memory()
        found = networks[-1].features(images).float()
        assert folded(networks[-1]) == convolutions
        assert torch.linalg.vector_norm(found - expected) <= 0.03 * torch.linalg.vector_norm(expected)
        second *= 1.1 if vector is second else 1.0  # the same tensor with other numbers
    assert networks[0] is networks[2], "captured steps refer to it"


def test_in_full_precision_nothing_is_folded() -> None:
    network = network_of("small-cnn")
    network.autocast = None
    assert not folded(fold(network))
