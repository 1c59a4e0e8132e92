"""Feature extractors: ResNet-18 with the stem that fits the image size, and a small CNN for tiny images."""

from __future__ import annotations

from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

Norm = Literal["batch", "group"]


def make_norm(kind: Norm, width: int) -> nn.Module:
    """Return BatchNorm, or GroupNorm with two groups, which keeps no running statistics."""
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(2, width)


def pool(x: Tensor) -> Tensor:
    """Average over all places: [B, C, H, W] to [B, C]."""
    return x.mean(dim=(2, 3))


class Projection(nn.Conv2d):
    """A 1x1 convolution that skips pixels by slicing: the strided form has no fast reproducible kernel on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected map."""
        rows, columns = self.stride
        return F.conv2d(x[:, :, ::rows, ::columns], self.weight)


def by_patches(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return a convolution of few channels as one matrix product over its patches, channels last.

    Matrix units take channels eight at a time; three would fall back to slower kernels for the same sums.
    """
    size, (step, _), around = conv.kernel_size[0], conv.stride, int(conv.padding[0])
    windows = F.pad(x, (around,) * 4).unfold(2, size, step).unfold(3, size, step)
    patches = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    fill = (0, -patches.shape[-1] % 8)
    product = F.linear(F.pad(patches, fill), F.pad(conv.weight.flatten(1), fill))
    return product.permute(0, 3, 1, 2)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.norm1 = make_norm(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = make_norm(norm, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(Projection(inputs, width, 1, stride, bias=False), make_norm(norm, width))

    def before_activation(self, x: Tensor) -> Tensor:
        """Return the block's output before its last ReLU."""
        out: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.shortcut(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.before_activation(x))


class ResNet18(nn.Module):
    """ResNet-18 without a classifier: [B, channels, H, W] to non-negative features [B, 512]."""

    feature_dim = 512

    def __init__(self, channels: int = 3, *, wide_stem: bool = False, norm: Norm = "batch") -> None:
        super().__init__()
        # ImageNet's stem is for images of 64 pixels and more: the last feature map is then 2x2.
        size, stride, padding = (7, 2, 3) if wide_stem else (3, 1, 1)
        self.stem = nn.Sequential(nn.Conv2d(channels, 64, size, stride, padding, bias=False), make_norm(norm, 64))
        self.shrink: nn.Module = nn.MaxPool2d(3, 2, 1) if wide_stem else nn.Identity()
        stages = []
        inputs = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages.append(nn.Sequential(BasicBlock(inputs, width, stride, norm), BasicBlock(width, width, 1, norm)))
            inputs = width
        self.stages = nn.Sequential(*stages)

    def forward(self, x: Tensor) -> Tensor:
        """Return globally average-pooled features."""
        return pool(self.stages(self.shrink(F.relu(self.first(x)))))

    def first(self, x: Tensor) -> Tensor:
        """Return the stem's output."""
        conv, norm = cast(tuple[nn.Conv2d, nn.Module], tuple(self.stem))
        out: Tensor = norm(by_patches(x, conv) if x.is_cuda and x.shape[1] % 8 else conv(x))
        return out

    def with_levels(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the pooled output of the stem and of each stage before its last ReLU."""
        out = self.first(x)
        levels = [pool(out)]
        out = self.shrink(F.relu(out))
        for stage in self.stages:
            first, last = cast(list[BasicBlock], list(stage.children()))
            out = last.before_activation(first(out))
            levels.append(pool(out))
            out = F.relu(out)
        return pool(out), tuple(levels)


class SmallCNN(nn.Module):
    """Three 3x3 convolutions for images of 8 to 32 pixels: features [B, width * 2]."""

    def __init__(self, channels: int = 1, *, width: int = 32, norm: Norm = "batch") -> None:
        super().__init__()
        self.feature_dim = 2 * width
        shapes = ((channels, width), (width, width), (width, 2 * width))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 1, 1, bias=False), make_norm(norm, b)) for a, b in shapes
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return globally average-pooled features."""
        for number, layer in enumerate(self.layers):
            x = F.relu(layer(F.max_pool2d(x, 2) if number == 2 else x))
        return pool(x)

    def with_levels(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the pooled output of each layer before its ReLU."""
        levels = []
        for number, layer in enumerate(self.layers):
            x = layer(F.max_pool2d(x, 2) if number == 2 else x)
            levels.append(pool(x))
            x = F.relu(x)
        return pool(x), tuple(levels)


Backbone = ResNet18 | SmallCNN
