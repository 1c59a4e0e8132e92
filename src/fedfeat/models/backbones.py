"""Feature extractors: ResNets with the stem that fits the image size, and a small CNN for tiny images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.core.errors import ConfigError

Norm = Literal["batch", "group"]
Pair = tuple[nn.Conv2d, nn.Module]  # a convolution and the norm behind it
Patches = Callable[[Tensor, nn.Conv2d], Tensor]  # (images, a convolution) -> the patches that it sees


class Activation(NamedTuple):
    """An activation for its two users: the next convolution, and the next shortcut, which may skip pixels."""

    whole: Tensor
    thin: Tensor


class NormKernel(Protocol):
    """What may stand in for BatchNorm, the shortcut's sum and ReLU: in training, and where no gradient is taken."""

    def __call__(self, norm: BatchNorm, x: Tensor, skip: Tensor | None, *, step: int, relu: bool) -> Activation:
        """Return ``relu(norm(x) + skip)`` with every ``step``-th pixel of it apart; without ReLU if told so."""
        ...


class Folded(Protocol):
    """What may stand in for a convolution, the BatchNorm behind it, the shortcut's sum and ReLU in a frozen network."""

    def __call__(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return ``relu(norm(conv(x)) + skip)``, the norm in evaluation mode."""
        ...


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm, for which an engine may have a kernel of its own."""

    kernel: NormKernel | None = None
    folded: Folded | None = None  # into the convolution before it

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised activation."""
        if (kernel := self.usable_kernel()) is None:
            if self.training and x.numel() == x.shape[1]:
                raise ConfigError(
                    "train.batch: a batch of one image has no variance for BatchNorm where the feature map is 1 x 1; "
                    "choose another train.batch, or set model.norm = 'group'"
                )
            return super().forward(x)
        return kernel(self, x, None, step=1, relu=False).whole

    def usable_kernel(self) -> NormKernel | None:
        """Return the kernel, unless a gradient is taken in evaluation mode, which kernels do not know."""
        return self.kernel if self.training or not torch.is_grad_enabled() else None


def convolved(conv: nn.Module, norm: nn.Module, x: Tensor, skip: Tensor | None = None, step: int = 1) -> Activation:
    """Return the activation behind a convolution, its norm and what came by the shortcut."""
    if isinstance(norm, BatchNorm) and norm.folded is not None:
        return for_both(norm.folded(x, skip), step)
    return activated(norm, conv(x), skip, step)


def activated(norm: nn.Module, x: Tensor, skip: Tensor | None = None, step: int = 1) -> Activation:
    """Normalise, add what came by the shortcut, cut off below zero; the next shortcut takes every ``step``-th pixel."""
    if isinstance(norm, BatchNorm) and (kernel := norm.usable_kernel()) is not None:
        return kernel(norm, x, skip, step=step, relu=True)
    out = norm(x)
    return for_both(F.relu(out if skip is None else out + skip), step)


def for_both(x: Tensor, step: int) -> Activation:
    """Return an activation as its two users take it."""
    # Slicing instead of a strided 1x1 convolution: that has no fast reproducible kernel on a GPU.
    return Activation(x, x if step == 1 else x[:, :, ::step, ::step])


def make_norm(kind: Norm, width: int) -> nn.Module:
    """Return BatchNorm, or GroupNorm with two groups, which keeps no running statistics."""
    return BatchNorm(width) if kind == "batch" else nn.GroupNorm(2, width)


def pool(x: Tensor) -> Tensor:
    """Average over all places: [B, C, H, W] to [B, C]."""
    return x.mean(dim=(2, 3))


def patch_geometry(conv: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return size, step and padding of a convolution's patches, and their entries, filled up to a multiple of eight."""
    size, (step, _), around = conv.kernel_size[0], conv.stride, int(conv.padding[0])
    return size, step, around, -(-conv.in_channels * size * size // 8) * 8


def unfolded(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return the patches that a convolution sees, [B, H, W, entries]."""
    size, step, around, entries = patch_geometry(conv)
    windows = F.pad(x, (around,) * 4).unfold(2, size, step).unfold(3, size, step)
    patches = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    return F.pad(patches, (0, entries - patches.shape[-1]))


def by_patches(x: Tensor, conv: nn.Conv2d, patches: Patches = unfolded) -> Tensor:
    """Return a convolution of few channels as one matrix product over its patches, channels last.

    Matrix units take channels eight at a time; three would fall back to slower kernels for the same sums.
    """
    seen, weight = patches(x, conv), conv.weight.flatten(1)
    return F.linear(seen, F.pad(weight, (0, seen.shape[-1] - weight.shape[-1]))).permute(0, 3, 1, 2)


class Block(nn.Module, ABC):
    """A residual block; ``next_stride`` is that of the block behind it."""

    expansion = 1  # channels of its output, in units of its width

    def __init__(self, inputs: int, width: int, stride: int, next_stride: int, norm: Norm) -> None:
        super().__init__()
        self.next_stride = next_stride
        self._build(inputs, width, stride, norm)
        outputs = self.expansion * width
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), make_norm(norm, outputs))

    @abstractmethod
    def _build(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        """Make the layers beside the shortcut."""

    @abstractmethod
    def pairs(self) -> list[Pair]:
        """Return the convolutions beside the shortcut, each with its norm."""

    def before_activation(self, x: Activation) -> Tensor:
        """Return the block's output before its last ReLU."""
        conv, norm = self.pairs()[-1]
        out: Tensor = norm(conv(self._inner(x))) + self.shortcut(x.thin)
        return out

    def forward(self, x: Activation) -> Activation:
        """Return the block's output."""
        conv, norm = self.pairs()[-1]
        return convolved(conv, norm, self._inner(x), self.shortcut(x.thin), self.next_stride)

    def _inner(self, x: Activation) -> Tensor:
        """Return what the last convolution sees."""
        out = x.whole
        for conv, norm in self.pairs()[:-1]:
            out = convolved(conv, norm, out).whole
        return out


class BasicBlock(Block):
    """Two 3x3 convolutions with a shortcut."""

    def _build(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.norm1 = make_norm(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = make_norm(norm, width)

    def pairs(self) -> list[Pair]:
        """Return the convolutions beside the shortcut, each with its norm."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2)]


class Bottleneck(Block):
    """A 3x3 convolution between two of 1x1, the last to four times the width, with a shortcut."""

    expansion = 4

    def _build(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = make_norm(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = make_norm(norm, width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = make_norm(norm, 4 * width)

    def pairs(self) -> list[Pair]:
        """Return the convolutions beside the shortcut, each with its norm."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2), (self.conv3, self.norm3)]


class Depth(NamedTuple):
    """A ResNet's kind of block, channels of its first stage, and blocks of each stage."""

    block: type[Block]
    width: int
    blocks: tuple[int, ...]


RESNETS = {
    "resnet18": Depth(BasicBlock, 64, (2, 2, 2, 2)),
    "resnet34": Depth(BasicBlock, 64, (3, 4, 6, 3)),
    "resnet50": Depth(Bottleneck, 64, (3, 4, 6, 3)),
    "resnet20": Depth(BasicBlock, 16, (3, 3, 3)),
    "resnet32": Depth(BasicBlock, 16, (5, 5, 5)),
}


class ResNet(nn.Module):
    """A ResNet without a classifier: [B, channels, H, W] to features [B, feature_dim].

    :param signed: leave the last ReLU out, so that features may be negative.
    """

    fingerprint: str | None = None  # of a folder with trained weights

    def __init__(
        self,
        channels: int = 3,
        *,
        name: str = "resnet18",
        wide_stem: bool = False,
        norm: Norm = "batch",
        signed: bool = False,
    ) -> None:
        super().__init__()
        self.signed = signed
        self.patches: Patches = unfolded  # or an engine's kernel
        block, width, blocks = RESNETS[name]
        # ImageNet's stem is for images of 64 pixels and more: the last feature map is then 2x2.
        size, stride, padding = (7, 2, 3) if wide_stem else (3, 1, 1)
        self.stem = nn.Sequential(nn.Conv2d(channels, width, size, stride, padding, bias=False), make_norm(norm, width))
        self.shrink: nn.Module = nn.MaxPool2d(3, 2, 1) if wide_stem else nn.Identity()
        stages = []
        inputs = width
        for number, count in enumerate(blocks):
            strides = [1 if number == 0 else 2, *[1] * (count - 1), 1 if number == len(blocks) - 1 else 2]
            stage = []
            for stride, next_stride in pairwise(strides):
                stage.append(block(inputs, width << number, stride, next_stride, norm))
                inputs = block.expansion * (width << number)
            stages.append(nn.Sequential(*stage))
        self.feature_dim = inputs
        self.stages = nn.Sequential(*stages)

    def map_size(self, pixels: int) -> int:
        """Return the height of the last feature map for images of some height, or the width alike."""
        for _ in range(len(self.stages) - 1 + (0 if isinstance(self.shrink, nn.Identity) else 2)):
            pixels = (pixels + 1) // 2
        return pixels

    def forward(self, x: Tensor) -> Tensor:
        """Return globally average-pooled features."""
        return pool(self.maps(x))

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps, [B, feature_dim, H, W]."""
        out = activated(self.stem[1], self.first(x))
        if not isinstance(self.shrink, nn.Identity):
            out = for_both(self.shrink(out.whole), 1)
        *blocks, last = (cast(Block, block) for stage in self.stages for block in cast(nn.Sequential, stage))
        for block in blocks:
            out = block(out)
        return last.before_activation(out) if self.signed else last(out).whole

    def first(self, x: Tensor) -> Tensor:
        """Return the first convolution."""
        conv = cast(nn.Conv2d, self.stem[0])
        if not x.is_cuda or x.shape[1] % 8 == 0:
            out: Tensor = conv(x)
            return out
        return by_patches(x, conv, unfolded if x.requires_grad else self.patches)  # kernels know no gradient

    def with_intermediate(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the pooled output of the stem and of each stage before its last ReLU."""
        out = self.stem[1](self.first(x))
        intermediate = [pool(out)]
        passed = for_both(self.shrink(F.relu(out)), 1)
        for stage in self.stages:
            *blocks, last = cast(list[Block], list(stage.children()))
            for block in blocks:
                passed = block(passed)
            out = last.before_activation(passed)
            intermediate.append(pool(out))
            passed = for_both(F.relu(out), last.next_stride)
        return intermediate[-1] if self.signed else pool(passed.whole), tuple(intermediate)


class SmallCNN(nn.Module):
    """Three 3x3 convolutions for images of 8 to 32 pixels: features [B, width * 2].

    :param signed: leave the last ReLU out, so that features may be negative.
    """

    fingerprint: str | None = None

    def __init__(self, channels: int = 1, *, width: int = 32, norm: Norm = "batch", signed: bool = False) -> None:
        super().__init__()
        self.signed = signed
        self.feature_dim = 2 * width
        shapes = ((channels, width), (width, width), (width, 2 * width))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 1, 1, bias=False), make_norm(norm, b)) for a, b in shapes
        )

    def map_size(self, pixels: int) -> int:
        """Return the height of the last feature map for images of some height, or the width alike."""
        return pixels // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return globally average-pooled features."""
        return pool(self.maps(x))

    def pairs(self) -> list[Pair]:
        """Return the convolutions, each with its norm."""
        return [(cast(nn.Conv2d, conv), norm) for conv, norm in cast(list[nn.Sequential], list(self.layers))]

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps, [B, width * 2, H, W]."""
        for number, (conv, norm) in enumerate(self.pairs()):
            x = F.max_pool2d(x, 2) if number == 2 else x
            x = norm(conv(x)) if number == 2 and self.signed else convolved(conv, norm, x).whole
        return x

    def with_intermediate(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the pooled output of each layer before its ReLU."""
        intermediate = []
        for number, layer in enumerate(self.layers):
            x = layer(F.max_pool2d(x, 2) if number == 2 else x)
            intermediate.append(pool(x))
            x = F.relu(x)
        return intermediate[-1] if self.signed else pool(x), tuple(intermediate)
