"""Networks: backbones, heads that grow, and the flat vector that holds a model's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from fedfeat.models.backbones import Backbone, ResNet18, SmallCNN
from fedfeat.models.heads import ETFHead, Head, LinearHead
from fedfeat.models.network import FlatModel, Network, Outputs, as_vector, initialise
from fedfeat.models.settings import ModelSettings

HeadFactory = Callable[[int, int, int], Head]  # (feature dimension, seed, classes of the whole run) -> head


def build_network(
    settings: ModelSettings,
    image_shape: tuple[int, int, int],
    make_head: HeadFactory,
    *,
    seed: int,
    num_classes: int,
    extras: Mapping[str, Callable[[int], nn.Module]] | None = None,
) -> Network:
    """Return an initialised network without classes; ``head.grow`` adds them task by task."""
    height, _, channels = image_shape
    name = settings.name if settings.name != "auto" else ("small-cnn" if height <= 16 else "resnet18")
    backbone: Backbone
    if name == "small-cnn":
        backbone = SmallCNN(channels, width=settings.width, norm=settings.norm)
    else:
        wide = settings.stem == "7x7" or (settings.stem == "auto" and height >= 64)
        backbone = ResNet18(channels, wide_stem=wide, norm=settings.norm)
    dim = backbone.feature_dim
    layers = {name: make(dim) for name, make in (extras or {}).items()}
    network = Network(backbone, make_head(dim, seed, num_classes), layers)
    initialise(network, seed, settings.init)
    return network


__all__ = [
    "ETFHead",
    "FlatModel",
    "Head",
    "HeadFactory",
    "LinearHead",
    "ModelSettings",
    "Network",
    "Outputs",
    "as_vector",
    "build_network",
]
