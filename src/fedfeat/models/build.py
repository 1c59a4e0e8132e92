"""Which network to train, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import expanded
from fedfeat.core.rng import int_at
from fedfeat.core.settings import Settings
from fedfeat.models.backbones import Norm, ResNet, SmallCNN
from fedfeat.models.heads import Head
from fedfeat.models.model_folder import load_model
from fedfeat.models.network import Backbone, Init, Network, initialise
from fedfeat.models.pretrained import PixelScale, PretrainedBackbone, Tune, add_lora

HeadFactory = Callable[[int, int, int], Head]  # (feature dimension, seed, classes of the whole run) -> head


class ModelSettings(Settings):
    """The backbone; the head is the method's choice."""

    name: Literal["auto", "small-cnn", "resnet18", "resnet20", "resnet32", "resnet34", "resnet50", "hf", "timm"] = (
        Field(
            "auto",
            description="backbone; auto takes small-cnn for images of up to 16 pixels, resnet18 above; hf and timm are "
            "pre-trained models from a folder",
        )
    )
    path: str | None = Field(
        None, description="hf, timm: folder of the model, with config.json and weights in safetensors"
    )
    tune: Tune | None = Field(
        None, description="hf, timm: what of the backbone is trained and sent; unset: LoRA adapters"
    )
    lora_rank: int | None = Field(None, ge=1, description="rank of LoRA adapters; unset: 8")
    lora_alpha: float | None = Field(
        None, gt=0, description="strength of LoRA adapters, which count alpha / rank times; unset: 16"
    )
    lora_targets: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="last names of the linear layers with adapters; unset: queries and values of attention, or all "
        "linear layers where a model has none of these names",
    )
    image_size: int | None = Field(
        None, ge=1, description="hf, timm: height and width that images are brought to; unset: what the folder says"
    )
    stem: Literal["auto", "3x3", "7x7"] = Field(
        "auto",
        description="first layer of a ResNet; auto takes 7x7 with a max-pool for images of 64 pixels or more",
    )
    init: Init = Field(
        "kaiming",
        description="initial weights of convolutions: kaiming is normal by the fan out, as in the released program; "
        "pytorch is PyTorch's own, which is smaller, so that early steps turn the network further",
    )
    norm: Norm = Field("batch", description="normalisation: BatchNorm, or GroupNorm with two groups")
    features: Literal["relu", "signed"] = Field(
        "relu",
        description="what is averaged to features: relu is the last ReLU's output, signed what comes before it, so "
        "that features may have both signs, as the classes of an ETF have",
    )
    width: int = Field(32, ge=4, description="channels of small-cnn; its features have twice as many dimensions")

    @model_validator(mode="after")
    def _folder_is_named(self) -> Self:
        keys = ("path", "tune", "lora_rank", "lora_alpha", "lora_targets", "image_size")
        stated = [key for key in keys if getattr(self, key) is not None]
        if self.pretrained and self.path is None:
            raise ValueError(f"name = {self.name!r} needs the folder of a model; set path")
        if stated and not self.pretrained:
            raise ValueError(
                f"{', '.join(stated)}: only for name = 'hf' or 'timm', got name = {self.name!r}; leave it out"
            )
        if self.pretrained and self.features != "relu":
            raise ValueError(f"features: only for backbones trained from scratch, not for {self.name!r}; leave it out")
        adapters = [key for key in stated if key.startswith("lora_")]
        if adapters and self.tune not in (None, "lora"):
            raise ValueError(f"{', '.join(adapters)}: only with tune = 'lora', got tune = {self.tune!r}")
        return self

    @property
    def pretrained(self) -> bool:
        """Whether the weights come from a folder."""
        return self.name in ("hf", "timm")

    @property
    def averages_statistics(self) -> bool:
        """Whether clients send running statistics of normalisation layers beside what they train."""
        return self.tune == "all" if self.pretrained else self.norm == "batch"

    def location(self) -> Path | None:
        """Return ``path`` with ``~`` and environment variables expanded, or None when it is unset."""
        return expanded(self.path)


def build_network(
    settings: ModelSettings,
    image_shape: tuple[int, int, int],
    make_head: HeadFactory,
    *,
    seed: int,
    num_classes: int,
    extras: Mapping[str, Callable[[int], nn.Module]] | None = None,
    pixels: PixelScale | None = None,
) -> Network:
    """Return an initialised network without classes; ``head.grow`` adds them task by task.

    :param pixels: what images are normalised with before they come to the network.
    """
    backbone: Backbone
    if settings.pretrained:
        backbone = _pretrained(settings, image_shape, pixels, seed)
    else:
        backbone = _fresh(settings, image_shape)
    dim = backbone.feature_dim
    layers = {name: make(dim) for name, make in (extras or {}).items()}
    network = Network(backbone, make_head(dim, seed, num_classes), layers)
    initialise(nn.ModuleList([network.head, network.extras]) if settings.pretrained else network, seed, settings.init)
    if not any(True for _ in network.trained_parameters()):
        raise ConfigError(
            "model.tune: with a frozen backbone and the classifier of this method there is nothing to train; set "
            "model.tune = 'lora', or leave the ETF out"
        )
    return network


def _fresh(settings: ModelSettings, image_shape: tuple[int, int, int]) -> ResNet | SmallCNN:
    height, _, channels = image_shape
    name = settings.name if settings.name != "auto" else ("small-cnn" if height <= 16 else "resnet18")
    signed = settings.features == "signed"
    if name != "small-cnn":
        wide = settings.stem == "7x7" or (settings.stem == "auto" and height >= 64)
        return ResNet(channels, name=name, wide_stem=wide, norm=settings.norm, signed=signed)
    if settings.norm == "group" and settings.width % 2:
        raise ConfigError(
            f"model.width: GroupNorm has two groups of channels, so it must be even, got {settings.width}; "
            f"take {settings.width + 1}, or model.norm = 'batch'"
        )
    return SmallCNN(channels, width=settings.width, norm=settings.norm, signed=signed)


def _pretrained(
    settings: ModelSettings, image_shape: tuple[int, int, int], pixels: PixelScale | None, seed: int
) -> PretrainedBackbone:
    tune = settings.tune or "lora"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int_at(seed, "initial-weights"))
        loaded = load_model(settings.name, settings.location(), settings.image_size)
        backbone = PretrainedBackbone(loaded, image_shape, pixels, tune)
        if tune == "lora":
            rank, alpha = settings.lora_rank or 8, settings.lora_alpha or 16.0
            add_lora(backbone.module, rank, alpha, settings.lora_targets or ())
    return backbone
