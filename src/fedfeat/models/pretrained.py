"""Backbones that were trained before: frozen, with LoRA adapters, or trained as a whole.

Only what is trained is part of the flat vector, and so is sent, averaged and saved. The rest stays in evaluation mode
and is the same on every machine, which the fingerprint of its folder tells.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.core.errors import ConfigError, required

Tune = Literal["nothing", "lora", "all"]
PER_CHANNEL = (1, -1, 1, 1)
ATTENTION = {"query", "value", "q_proj", "v_proj", "qkv"}  # what adapters are put on where a model has it


class PixelScale(NamedTuple):
    """Mean and standard deviation of each channel, on the scale 0 to 1."""

    mean: Sequence[float]
    std: Sequence[float]


class LoadedModel(NamedTuple):
    """A model as its folder has it."""

    module: nn.Module
    size: int | None  # height and width of the images that it was made for; None takes any
    channels: int
    pixels: PixelScale | None  # what its images were normalised with, if the folder says so
    fingerprint: str
    options: Mapping[str, Any] = MappingProxyType({})  # of every forward pass


class PretrainedBackbone(nn.Module):
    """Images [B, C, H, W], normalised as the data set's, to features [B, d]."""

    def __init__(
        self, loaded: LoadedModel, image_shape: tuple[int, int, int], pixels: PixelScale | None, tune: Tune
    ) -> None:
        super().__init__()
        self.module, self.size, self.channels = loaded.module, loaded.size, loaded.channels
        self.fingerprint: str | None = loaded.fingerprint
        self.options = dict(loaded.options)
        self.tune = tune
        self.class_token = any(name.endswith("cls_token") for name, _ in self.module.named_parameters())
        if self.class_token and hasattr(self.module, "pooler"):
            setattr(self.module, "pooler", None)  # noqa: B010  # a layer behind the class token, often untrained, that nothing here uses
        given = image_shape[2]
        if given not in (1, self.channels):
            raise ConfigError(
                f"model.path: this model takes images of {self.channels} channels, and the data set's have {given}; "
                "choose another model or data set"
            )
        for name, value in zip(("scale", "shift"), _conversion(pixels, loaded.pixels, self.channels), strict=True):
            self.register_buffer(name, value, persistent=False)
        self.module.requires_grad_(tune == "all")
        self.eval()
        self.feature_dim = self._probe(image_shape)

    scale: Tensor
    shift: Tensor

    @torch.no_grad()
    def _probe(self, image_shape: tuple[int, int, int]) -> int:
        """Return the width of the features of one black image."""
        height, width, channels = image_shape
        try:
            feature = self(torch.zeros(1, channels, height, width))
        except (RuntimeError, ValueError) as error:
            size = self.size or f"{height} x {width}"
            raise ConfigError(
                f"model.image_size: this model cannot take images of {size} pixels ({str(error).splitlines()[0]}); set "
                "another size"
            ) from None
        return int(feature.shape[1])

    def frozen_names(self) -> set[str]:
        """Return the parameters and statistics that stay as they are on every machine."""
        buffers = {name for name, _ in self.named_buffers()} if self.tune != "all" else {"scale", "shift"}
        return buffers | {n for n, _ in self.named_parameters() if self.tune == "nothing" or not self._trained(n)}

    def _trained(self, name: str) -> bool:
        return self.tune == "all" or ".lora_" in name

    def train(self, mode: bool = True) -> PretrainedBackbone:
        """Set the mode; a frozen model has no other than that of evaluation."""
        super().train(mode and self.tune == "all")
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        return self._feature(self.module(self.prepared(x), **self.options))

    def prepared(self, x: Tensor) -> Tensor:
        """Bring images to the model's own channels, scale and size."""
        x = x.expand(-1, self.channels, -1, -1) * self.scale + self.shift
        if self.size is None or x.shape[-2:] == (self.size, self.size):
            return x
        smaller = min(x.shape[-2:]) > self.size
        return F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=smaller)

    def with_intermediate(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the pooled output of each layer."""
        outputs = self.module(self.prepared(x), output_hidden_states=True, **self.options)
        hidden: Sequence[Tensor] = outputs.hidden_states
        return self._feature(outputs), tuple(map(self._pooled, hidden))

    def _feature(self, outputs: Any) -> Tensor:
        """Return the class token, or the model's own pooling, or the mean over places."""
        if isinstance(outputs, Tensor):
            return outputs
        own = outputs.get("pooler_output")
        return self._pooled(outputs.last_hidden_state) if self.class_token or own is None else own.flatten(1)

    def _pooled(self, hidden: Tensor) -> Tensor:
        if hidden.dim() == 4:
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if self.class_token else hidden.mean(dim=1)

    def merged(self) -> PretrainedBackbone:
        """Return a copy whose adapters are part of the layers that they sat on: the same function, fewer products."""
        twin = copy.deepcopy(self)
        for name, module in list(twin.named_modules()):
            if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
                module.merge()
                parent, _, child = name.rpartition(".")
                setattr(twin.get_submodule(parent), child, module.base_layer)
        twin.tune = "nothing"
        return twin


def add_lora(module: nn.Module, rank: int, alpha: float, targets: Sequence[str]) -> nn.Module:
    """Put LoRA adapters on linear layers: those that end in one of ``targets``, or else on queries and values.

    A model without such layers gets adapters on all its linear ones. They begin as zero: the function stays the same.
    """
    peft = required("peft", "hf", "model.tune = 'lora'")
    linear = {name.rpartition(".")[2] for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    chosen = sorted(targets or linear & ATTENTION or linear)
    if not chosen or not linear.issuperset(chosen):
        raise ConfigError(
            f"model.lora_targets: expected names of linear layers, got {chosen}; this model has "
            f"{', '.join(sorted(linear)) or 'none, so set model.tune to nothing or all'}"
        )
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=chosen)
    adapted: nn.Module = peft.inject_adapter_in_model(config, module)
    return adapted


def _conversion(given: PixelScale | None, wanted: PixelScale | None, channels: int) -> tuple[Tensor, Tensor]:
    """Return what turns images normalised by one mean and deviation into those of the other, channel by channel."""
    if given is None or wanted is None:
        return torch.ones(1, channels, 1, 1), torch.zeros(1, channels, 1, 1)
    (mean, std), (to_mean, to_std) = (
        (torch.tensor(v, dtype=torch.float64).expand(channels) for v in scale) for scale in (given, wanted)
    )
    values = std / to_std, (mean - to_mean) / to_std
    scale, shift = (v.float().reshape(PER_CHANNEL) for v in values)
    return scale, shift
