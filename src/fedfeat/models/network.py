"""A backbone and a head as one network, with all its numbers in one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.core.rng import int_at
from fedfeat.models.backbones import ResNet, SmallCNN
from fedfeat.models.heads import Head
from fedfeat.models.pretrained import PretrainedBackbone

Init = Literal["kaiming", "pytorch"]
Backbone = ResNet | SmallCNN | PretrainedBackbone


class Outputs(NamedTuple):
    """What a forward pass gives: the feature that the classifier sees, and its logits."""

    features: Tensor
    logits: Tensor


class Network(nn.Module):
    """Backbone, then head; ``extras`` are layers that only loss terms use, trained and averaged like the rest."""

    def __init__(self, backbone: Backbone, head: Head, extras: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.extras = nn.ModuleDict(dict(extras or {}))
        self.autocast: torch.dtype | None = None  # precision of the backbone; head and losses stay in float32

    def frozen_names(self) -> set[str]:
        """Return parameters and buffers that are the same everywhere: never trained, sent, averaged or saved."""
        names = self.backbone.frozen_names() if isinstance(self.backbone, PretrainedBackbone) else set()
        return {"head.prototypes", *(f"backbone.{name}" for name in names)}

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that are trained, by name."""
        frozen = self.frozen_names()
        return ((name, parameter) for name, parameter in self.named_parameters() if name not in frozen)

    def twin(self) -> Network:
        """Return a copy; what is frozen is there once, however many copies there are."""
        frozen = self.frozen_names()
        tensors = [t for name, t in (*self.named_parameters(), *self.named_buffers()) if name in frozen]
        return copy.deepcopy(self, {id(t): t for t in tensors})

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the classifier sees."""
        with self.reduced_precision(x):
            pooled = self.backbone(x)
        return self.head.feature(pooled.float())

    def reduced_precision(self, x: Tensor) -> AbstractContextManager[Any]:
        """Return the context in which the backbone runs."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(x.device.type, self.autocast)

    def forward(self, x: Tensor) -> Outputs:
        """Return features and logits."""
        features = self.features(x)
        return Outputs(features, self.head(features))

    def with_intermediate(self, x: Tensor) -> tuple[Outputs, tuple[Tensor, ...]]:
        """Return the outputs and the pooled features of every stage before its activation."""
        with self.reduced_precision(x):
            pooled, intermediate = self.backbone.with_intermediate(x)
        features = self.head.feature(pooled.float())
        return Outputs(features, self.head(features)), tuple(f.float() for f in intermediate)


def initialise(network: nn.Module, seed: int, init: Init = "kaiming") -> None:
    """Draw the initial weights from their address; BatchNorm starts at identity."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int_at(seed, "initial-weights"))
        for module in network.modules():
            if isinstance(module, nn.Conv2d) and init == "kaiming":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Conv2d | nn.Linear):
                module.reset_parameters()


ALIGNMENT = 4  # numbers of float32 in 16 bytes


class FlatModel:
    """A network whose parameters and running statistics are views into one vector.

    Loading a model, averaging clients and sending weights are then single operations on ``vector``; the first
    ``num_trainable`` entries are what an optimiser moves, the rest are BatchNorm's running statistics. Integer
    counters stay where they are: nothing reads them. What is frozen is not in the vector.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        frozen = network.frozen_names()
        trainable = _in_order(network.trained_parameters())
        running = [(n, b) for n, b in network.named_buffers() if b.is_floating_point() and n not in frozen]
        self.parameters = [p for _, p in trainable]  # in the order of the vector
        self.num_entries = len(trainable)  # of ``layout`` that are trained; they come first
        self.num_trainable = sum(p.numel() for p in self.parameters)
        self.gap = -self.num_trainable % ALIGNMENT
        entries = [*trainable, *running]
        gap = torch.zeros(self.gap, device=self.parameters[0].device)
        self.vector = as_vector([*(p.detach() for p in self.parameters), gap, *(b for _, b in running)])
        self.gradient = torch.zeros_like(self.vector[: self.num_trainable])
        self.layout = {name: tuple(t.shape) for name, t in entries}
        for (_, tensor), view in zip(entries, self._views(self.vector), strict=True):
            tensor.data = view
        for parameter, view in zip(self.parameters, self._views(self.gradient, self.num_entries), strict=True):
            parameter.grad = view

    @property
    def weights(self) -> Tensor:
        """The trainable part of ``vector``, as a view."""
        return self.vector[: self.num_trainable]

    def load(self, vector: Tensor) -> None:
        """Copy a vector of the same layout into the network."""
        self.vector.copy_(vector)

    def widened(self, vector: Tensor, num_classes: int, fill: float = 0.0) -> Tensor:
        """Return the trainable part of an earlier task's vector, with ``num_classes`` classes, in today's layout.

        Rows of classes that came later are filled with ``fill``. With fewer rows an entry may have had another place.
        """
        wide = torch.full_like(self.weights, fill)
        views = dict(zip(self.layout, self.views(wide), strict=False))
        growing = {f"head.{name}" for name in self.network.head.growing}
        earlier = [
            (name, views[name][:num_classes] if name in growing else views[name])
            for name, _ in self.network.trained_parameters()
        ]
        offset = 0
        for _, part in _in_order(earlier):
            part.copy_(_shaped(vector[offset : offset + part.numel()], tuple(part.shape)))
            offset += part.numel()
        return wide

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return a vector of the trainable part's size as one tensor per parameter, sharing its memory."""
        return list(self._views(vector, self.num_entries))

    def gather(self, gradients: Sequence[Tensor | None]) -> None:
        """Put one gradient per parameter into ``gradient``, in as few kernels as their memory layouts allow."""
        together: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for view, gradient in zip(self.views(self.gradient), gradients, strict=True):
            if gradient is None:  # the loss does not touch this parameter
                view.zero_()
            elif not lies_like(gradient, view):
                view.copy_(gradient)
            else:
                views, found = together.setdefault(gradient.dtype, ([], []))
                views.append(view)
                found.append(gradient.as_strided(view.shape, view.stride()))
        for views, found in together.values():
            torch._foreach_copy_(views, found)

    def named_values(self) -> dict[str, Tensor]:
        """Return every entry by name, as views."""
        return dict(zip(self.layout, self._views(self.vector), strict=True))

    def _views(self, vector: Tensor, count: int | None = None) -> Iterator[Tensor]:
        offset = 0
        for number, shape in enumerate(list(self.layout.values())[:count]):
            offset += self.gap if number == self.num_entries else 0
            size = int(torch.Size(shape).numel())
            yield _shaped(vector[offset : offset + size], shape)
            offset += size


def _in_order(entries: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return entries as a vector holds them: those of odd sizes last.

    Kernels want addresses that are multiples of 16 bytes; a gap follows the last entry for the same reason.
    """
    return sorted(entries, key=lambda entry: entry[1].numel() % ALIGNMENT != 0)


def as_vector(tensors: Iterable[Tensor]) -> Tensor:
    """Join tensors into one vector, convolution weights with their channels last.

    Images come with channels last, and a convolution is fastest when its weights do too.
    """
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).flatten() for t in tensors])


def _shaped(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a part of a vector as a view of the given shape, the reverse of ``as_vector``."""
    if len(shape) != 4:
        return part.view(shape)
    outputs, inputs, height, width = shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def lies_like(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one shape have one memory layout; a stride over a single entry says nothing."""
    return all(x == y for size, x, y in zip(a.shape, a.stride(), b.stride(), strict=True) if size > 1)
