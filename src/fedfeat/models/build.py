"""Which network to train, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field
from torch import nn

from fedfeat.core.errors import ConfigError
from fedfeat.core.settings import Settings
from fedfeat.models.backbones import Backbone, Norm, ResNet18, SmallCNN
from fedfeat.models.heads import Head
from fedfeat.models.network import Init, Network, initialise

HeadFactory = Callable[[int, int, int], Head]  # (feature dimension, seed, classes of the whole run) -> head


class ModelSettings(Settings):
    """The backbone; the head is the method's choice."""

    name: Literal["auto", "resnet18", "small-cnn"] = Field(
        "auto", description="backbone; auto takes small-cnn for images of up to 16 pixels, resnet18 above"
    )
    stem: Literal["auto", "3x3", "7x7"] = Field(
        "auto",
        description="first layer of resnet18; auto takes 7x7 with a max-pool for images of 64 pixels or more",
    )
    init: Init = Field(
        "kaiming",
        description="initial weights of convolutions: kaiming is normal by the fan out, as in the released program; "
        "pytorch is PyTorch's own, which is smaller, so that early steps turn the network further",
    )
    norm: Norm = Field("batch", description="normalisation: BatchNorm, or GroupNorm with two groups")
    width: int = Field(32, ge=4, description="channels of small-cnn; its features have twice as many dimensions")


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
        if settings.norm == "group" and settings.width % 2:
            raise ConfigError(
                f"model.width: GroupNorm has two groups of channels, so it must be even, got {settings.width}; "
                f"take {settings.width + 1}, or model.norm = 'batch'"
            )
        backbone = SmallCNN(channels, width=settings.width, norm=settings.norm)
    else:
        wide = settings.stem == "7x7" or (settings.stem == "auto" and height >= 64)
        backbone = ResNet18(channels, wide_stem=wide, norm=settings.norm)
    dim = backbone.feature_dim
    layers = {name: make(dim) for name, make in (extras or {}).items()}
    network = Network(backbone, make_head(dim, seed, num_classes), layers)
    initialise(network, seed, settings.init)
    return network
