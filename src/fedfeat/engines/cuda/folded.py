"""Frozen networks with BatchNorm folded into convolutions, so that cuDNN adds the shortcut and cuts off at once."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.engines.base import FrozenNetworks
from fedfeat.models import Network
from fedfeat.models.backbones import BatchNorm, Block, SmallCNN

CUDNN = torch.version.cuda is not None  # has one call for convolution, bias, sum and ReLU


class FoldedConvolution:
    """A convolution and the norm behind it as one convolution with a bias, in reduced precision.

    Its weights stay where they are: ``refresh`` fills them anew from those of the network.
    """

    def __init__(self, conv: nn.Conv2d, norm: BatchNorm, dtype: torch.dtype) -> None:
        self.conv, self.norm = conv, norm
        self.weight = conv.weight.detach().to(dtype, copy=True, memory_format=torch.channels_last)
        self.bias = torch.zeros(conv.out_channels, dtype=dtype, device=self.weight.device)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take up the weights and statistics that the network has now."""
        norm = self.norm
        scale = norm.weight * torch.rsqrt(cast(Tensor, norm.running_var) + norm.eps)
        self.weight.copy_(self.conv.weight * scale.view(-1, 1, 1, 1))
        self.bias.copy_(norm.bias - cast(Tensor, norm.running_mean) * scale)

    def __call__(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return ``relu(norm(conv(x)) + skip)``."""
        x, conv = x.to(self.weight.dtype), self.conv
        options = conv.stride, cast(tuple[int, ...], conv.padding), conv.dilation
        if x.is_cuda and CUDNN and x.shape[1] % 8 == 0:  # matrix units take channels eight at a time
            if skip is None:
                return torch.cudnn_convolution_relu(x, self.weight, self.bias, *options, conv.groups)
            skip = skip.to(x.dtype)
            return torch.cudnn_convolution_add_relu(x, self.weight, skip, 1.0, self.bias, *options, conv.groups)
        out = F.conv2d(x, self.weight, self.bias, *options, conv.groups)
        return F.relu(out if skip is None else out + skip)


class FoldedNetworks:
    """Frozen networks whose norms are folded; the folded weights follow those that are loaded."""

    def __init__(self, frozen: FrozenNetworks) -> None:
        self.frozen = frozen
        self._holds: dict[tuple[str, int], tuple[Tensor, int]] = {}  # which vector, and its version then

    def __call__(self, name: str, vector: Tensor, task: int) -> Network:
        """Return the network that now holds a vector of some task."""
        network = self.frozen(name, vector, task)
        held, version = self._holds.get((name, task), (None, -1))
        if held is not vector or version != vector._version:
            for module in network.modules():
                if isinstance(module, BatchNorm) and isinstance(module.folded, FoldedConvolution):
                    module.folded.refresh()
            self._holds[name, task] = vector, vector._version
        return network


def fold(network: Network) -> Network:
    """Fold the norms of a network that is never trained; ``FoldedNetworks`` fills in what is folded."""
    if network.autocast is None:
        return network  # in full precision there is more to lose than to gain
    for module in network.modules():
        for conv, norm in module.pairs() if isinstance(module, Block | SmallCNN) else ():
            if isinstance(norm, BatchNorm):
                norm.folded = FoldedConvolution(conv, norm, network.autocast)
    return network
