"""SGD from gradients where autograd left them: weights, velocity and rounded weights in one pass.

Autograd leaves a gradient per layer, some rounded, some not. Bringing them into one vector, stepping and rounding the
weights again would be three passes over the model; here every program reads its piece of a gradient at that layer's
own address. A captured step keeps its addresses, so they are written down once, when its capture has ended, in memory
from before it: what a capture takes for itself, it may give to other tensors of the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedfeat.engines.cuda.kernels.launch import launch
from fedfeat.models.network import lies_like

PIECE = 4096  # entries of the vector that one program updates; a piece lies in one layer
ALIGNED = 16  # entries; pieces that begin and end at multiples of it are read 16 bytes at a time


@triton.jit
def _sgd(
    addresses, rounded, pieces, weights, velocity, half, lr, momentum, decay,
    HALF: tl.constexpr, ALIGNED: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    piece = pieces + 4 * tl.program_id(0)
    layer, within = tl.load(piece), tl.multiple_of(tl.load(piece + 1), PIECE)
    start, length = tl.multiple_of(tl.load(piece + 2), ALIGNED), tl.multiple_of(tl.load(piece + 3), ALIGNED)
    entry = tl.arange(0, PIECE)
    inside = entry < length
    address = tl.load(addresses + layer)
    if tl.load(rounded + layer) != 0:
        halves = tl.multiple_of(address.to(tl.pointer_type(half.dtype.element_ty)), 16)
        gradient = tl.load(halves + within + entry, mask=inside, other=0.0).to(tl.float32)
    else:
        floats = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
        gradient = tl.load(floats + within + entry, mask=inside, other=0.0)
    place = start + entry
    weight = tl.load(weights + place, mask=inside, other=0.0)
    speed = tl.load(velocity + place, mask=inside, other=0.0) * momentum + (gradient + decay * weight)
    weight -= tl.load(lr) * speed
    tl.store(velocity + place, speed, mask=inside)
    tl.store(weights + place, weight, mask=inside)
    if HALF:
        tl.store(half + place, weight.to(half.dtype.element_ty), mask=inside)


def capturing() -> bool:
    """Return whether a step is being captured: host and device may not talk then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class Descend:
    """One model's SGD step, for the layers whose views of the flat vector are given."""

    def __init__(self, views: Sequence[Tensor]) -> None:
        self.views = views
        self.device = views[0].device
        first = views[0].storage_offset()
        aligned: list[tuple[int, ...]] = []
        others: list[tuple[int, ...]] = []
        for layer, view in enumerate(views):
            start = int(view.storage_offset() - first)
            for within in range(0, view.numel(), PIECE):
                length = min(PIECE, view.numel() - within)
                fits = (start + within) % ALIGNED == 0 and length % ALIGNED == 0
                (aligned if fits else others).append((layer, within, start + within, length))
        self.groups = [(a, torch.tensor(p, device=self.device)) for a, p in ((ALIGNED, aligned), (1, others)) if p]
        self.next: Tensor | None = None  # a table for the next step
        self.captured: list[tuple[Tensor, Tensor]] = []  # tables of captured steps, and what to write into them
        self.zero = torch.zeros(max(v.numel() for v in views), device=self.device)

    def __call__(
        self, gradients: Sequence[Tensor | None], weights: Tensor, velocity: Tensor, half: Tensor | None, lr: Tensor,
        *, momentum: float, decay: float,
    ) -> None:  # fmt: skip
        """Step once; a captured step must have been taken outside a capture before, and counts after ``settle``."""
        found = [self._like(view, gradient) for view, gradient in zip(self.views, gradients, strict=True)]
        values = torch.tensor([[g.data_ptr() for g in found], [int(g.dtype != torch.float32) for g in found]])
        if capturing():
            assert self.next is not None, "a step is taken before it is captured"
            table, self.next = self.next, None
            self.captured.append((table, values))
        else:
            table = self.next = values.to(self.device)
        for aligned, pieces in self.groups:
            launch(
                _sgd, (len(pieces),),
                table[0], table[1], pieces, weights, velocity, weights if half is None else half, lr, momentum, decay,
                HALF=half is not None, ALIGNED=aligned, PIECE=PIECE, num_warps=8,
            )  # fmt: skip

    def settle(self) -> None:
        """Write down the addresses of steps that have been captured."""
        for table, values in self.captured:
            table.copy_(values)

    def _like(self, view: Tensor, gradient: Tensor | None) -> Tensor:
        """Return a gradient whose entries lie in memory as those of the vector do."""
        if gradient is None:  # the loss does not touch this layer
            return self.zero
        if gradient.data_ptr() % 16 == 0 and lies_like(gradient, view):
            return gradient
        return torch.empty_strided(view.shape, view.stride(), dtype=gradient.dtype, device=self.device).copy_(gradient)
