"""Which network to train."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedfeat.core.settings import Settings
from fedfeat.models.backbones import Norm
from fedfeat.models.network import Init


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
