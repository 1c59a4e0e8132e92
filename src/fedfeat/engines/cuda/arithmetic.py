"""What captured steps are computed with: PyTorch as it is, PyTorch's compiler, or kernels of our own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING  # Triton is there on Linux with an NVIDIA GPU only

import torch
from torch import Tensor

from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.errors import ConfigError
from fedfeat.data.augment import DeviceImages
from fedfeat.geometry import gsa_loss
from fedfeat.models import FlatModel, Network
from fedfeat.models.backbones import BatchNorm, ResNet

if TYPE_CHECKING:
    from fedfeat.engines.cuda.kernels.descend import Descend

Backbone = Callable[[dict[str, Tensor], Tensor], Tensor]  # (its parameters, images) -> pooled features
Transform = Callable[..., Tensor]  # (indices, crops, flips, brightness, changes if there are any) -> images


def backbone_of(network: Network) -> Backbone:
    """Return a backbone as a function of its parameters; its running statistics are its own."""
    buffers = dict(network.backbone.named_buffers())

    def run(parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        pooled: Tensor = torch.func.functional_call(network.backbone, {**parameters, **buffers}, (images,))
        return pooled

    return run


def fused_sgd(
    weights: Tensor, gradient: Tensor, velocity: Tensor, lr: Tensor, *, momentum: float, decay: float
) -> None:
    """Apply SGD in one pass over weights, gradient and velocity: the kernel behind ``torch.optim.SGD(fused=True)``."""
    torch._fused_sgd_(
        [weights],
        [gradient],
        [velocity],
        weight_decay=decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


class Plain:
    """PyTorch as it is; the others differ from it where they can do better."""

    def __init__(self, images: DeviceImages, batch: int, dtype: torch.dtype) -> None:
        self.images, self.batch, self.dtype = images, batch, dtype

    def prepare(self, network: Network) -> Network:
        """Drop BatchNorm's batch counters, which nothing reads: one small kernel less per layer and step."""
        for module in network.modules():
            if isinstance(module, BatchNorm):
                module.num_batches_tracked = None
        return network

    def transform(self, size: int, columns: int) -> Transform:
        """Return the augmentation of a batch, from bytes to normalised images.

        :param columns: of a plan's further changes.
        """
        return self.images.transformed

    def forward(self, network: Network, size: int) -> Backbone:
        """Return the backbone as a function of its parameters."""
        return backbone_of(network)

    def loss(self, term: LossTerm) -> Callable[[Step], Tensor]:
        """Return a loss term as a function."""
        return term.function

    def sgd(self, model: FlatModel) -> Descend | None:
        """Return SGD as one kernel from the gradients of single layers; None where they are gathered first."""
        return None

    def compile(self, name: str, work: Callable[[], None]) -> None:
        """Compile what the work needs before it runs; whatever it changes is of no use afterwards."""


class Compiled(Plain):
    """Full batches are compiled, once for all replicas; remainders would pay for it too seldom."""

    def __init__(self, images: DeviceImages, batch: int, dtype: torch.dtype) -> None:
        super().__init__(images, batch, dtype)
        self._forward: Backbone | None = None
        self._transform: Transform | None = None

    def transform(self, size: int, columns: int) -> Transform:
        """Return the augmentation as a single kernel."""
        if size != self.batch or columns:
            return super().transform(size, columns)
        if self._transform is None:
            self._transform = torch.compile(self.images.transformed, fullgraph=True, dynamic=False)
        return self._transform

    def forward(self, network: Network, size: int) -> Backbone:
        """Return the backbone, compiled as a function of its parameters and running statistics."""
        if size != self.batch:
            return super().forward(network, size)
        if self._forward is None:
            template = network.backbone

            def run(values: dict[str, Tensor], images: Tensor) -> Tensor:
                pooled: Tensor = torch.func.functional_call(template, values, (images,))
                return pooled

            self._forward = torch.compile(run, fullgraph=True, dynamic=False)
        compiled, buffers = self._forward, dict(network.backbone.named_buffers())
        return lambda parameters, images: compiled({**parameters, **buffers}, images)


class Own(Plain):
    """Our kernels for what lies between convolutions, for batches of any size."""

    def __init__(self, images: DeviceImages, batch: int, dtype: torch.dtype) -> None:
        super().__init__(images, batch, dtype)
        self._compiled: set[str] = set()  # names of work

    def prepare(self, network: Network) -> Network:
        """Let BatchNorm train in our kernels, and the first convolution read its patches from one."""
        from fedfeat.engines.cuda.kernels.norm import norm_relu
        from fedfeat.engines.cuda.kernels.patches import patches

        for module in super().prepare(network).modules():
            if isinstance(module, BatchNorm):
                module.kernel = norm_relu
            elif isinstance(module, ResNet):
                module.patches = patches
        return network

    def transform(self, size: int, columns: int) -> Transform:
        """Return the augmentation as a single kernel, if there is one for it."""
        from fedfeat.engines.cuda.kernels.augment import Augment

        one = Augment.serves(self.images, columns)
        return Augment(self.images, self.dtype) if one else super().transform(size, columns)

    def loss(self, term: LossTerm) -> Callable[[Step], Tensor]:
        """Return a loss term in kernels of our own where there are any for it."""
        if term.fusable is None or term.fusable.function is not gsa_loss:
            return term.function
        from fedfeat.engines.cuda.kernels import alignment

        options = term.fusable.options
        return lambda step: alignment.gsa_loss(step.features, step.labels, step.num_prototypes, **options)

    def sgd(self, model: FlatModel) -> Descend | None:
        """Return SGD as one kernel."""
        from fedfeat.engines.cuda.kernels.descend import Descend

        return Descend(model.views(model.weights))

    def compile(self, name: str, work: Callable[[], None]) -> None:
        """Compile the kernels of a kind of work side by side, the first time."""
        from fedfeat.engines.cuda.kernels.launch import compiling_ahead

        if name not in self._compiled:
            with compiling_ahead(self.images.device):
                work()
            self._compiled.add(name)


def arithmetic(kernels: str, images: DeviceImages, batch: int, dtype: torch.dtype) -> Plain:
    """Return what ``engine.kernels`` names; our kernels need Triton, which PyTorch for NVIDIA GPUs brings on Linux."""
    installed = importlib.util.find_spec("triton") is not None
    if kernels == "triton" and not installed:
        raise ConfigError("engine.kernels: triton is not installed here; pip install triton, or choose torch")
    kinds = {"torch": Plain, "compiled": Compiled, "triton": Own, "auto": Own if installed else Plain}
    return kinds[kernels](images, batch, dtype)
