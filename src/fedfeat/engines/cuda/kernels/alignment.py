"""GSA in a handful of kernels: what ``fedfeat.geometry.gsa_loss`` says, with its gradient in closed form.

With ``s`` the cosines of a batch over the temperature, ``a = log softmax(s)``, ``p = exp(a)`` and ``b``, ``q`` the same
of the prototypes, a row's divergence and its gradient are

    FP:  r = sum p (a - b)      dr/ds = p (a - b - r)
    PF:  r = sum q (b - a)      dr/ds = p - q
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedfeat.engines.cuda.kernels.launch import launch
from fedfeat.geometry.etf import etf_cosine
from fedfeat.geometry.gsa import Divergence

EPS = 1e-8
FAR = -1e4  # instead of minus infinity, as in the reference
FORWARD_SHARE = {"FP": 1.0, "PF": 0.0, "sym": 0.5}


@triton.jit
def _vector(width, WIDTH: tl.constexpr):
    """The row that is a program's own, the places of its entries, and which of them exist."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    return row, row * width + column, column < width


@triton.jit
def _directions(x, unit, inverse, width, eps, WIDTH: tl.constexpr):
    row, place, inside = _vector(width, WIDTH)
    value = tl.load(x + place, mask=inside, other=0.0)
    scale = 1.0 / tl.maximum(tl.sqrt_rn(tl.sum(value * value, 0)), eps)
    tl.store(unit + place, value * scale, mask=inside)
    tl.store(inverse + row, scale)


@triton.jit
def _log_softmax(value, inside):
    value = tl.where(inside, value, -float("inf"))
    value -= tl.max(value, 0)
    return tl.where(inside, value - tl.log(tl.sum(tl.where(inside, tl.exp(value), 0.0), 0)), 0.0)


@triton.jit(do_not_specialize=("size",))
def _rows(
    cosines, labels, losses, weights, slopes, size, temperature, other, forward_share, far,
    SELF: tl.constexpr, BALANCED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One row's divergence, its weight, and the gradient of their product by the row's cosines."""
    row = tl.program_id(0)
    column = tl.arange(0, SIZE)
    inside = column < size
    same = (tl.load(labels + column, mask=inside, other=-1) == tl.load(labels + row)) & inside
    cosine = tl.load(cosines + row * size + column, mask=inside, other=0.0) / temperature
    target = tl.where(same, 1.0, other) / temperature
    if not SELF:
        cosine = tl.where(column == row, far, cosine)
        target = tl.where(column == row, far, target)
    student, teacher = _log_softmax(cosine, inside), _log_softmax(target, inside)
    p, q = tl.where(inside, tl.exp(student), 0.0), tl.where(inside, tl.exp(teacher), 0.0)
    gap = student - teacher
    forward, backward = tl.sum(p * gap, 0), -tl.sum(q * gap, 0)
    slope = forward_share * p * (gap - forward) + (1.0 - forward_share) * (p - q)
    if not SELF:
        slope = tl.where(column == row, 0.0, slope)
    weight = 1.0 / tl.sum(same.to(tl.float32), 0) if BALANCED else 1.0
    tl.store(losses + row, weight * (forward_share * forward + (1.0 - forward_share) * backward))
    tl.store(weights + row, weight)
    tl.store(slopes + row * size + column, slope * (weight / temperature), mask=inside)


@triton.jit(do_not_specialize=("size",))
def _mean(losses, weights, loss, total, size, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    weight = tl.sum(tl.load(weights + row, mask=row < size, other=0.0), 0)
    tl.store(loss, tl.sum(tl.load(losses + row, mask=row < size, other=0.0), 0) / weight)
    tl.store(total, weight)


@triton.jit(do_not_specialize=("size",))
def _both_ways(slopes, total, gradient, out, size, SIZE: tl.constexpr):
    """A cosine belongs to two rows: the slopes of both, times the gradient of the loss."""
    row = tl.program_id(0)
    column = tl.arange(0, SIZE)
    inside = column < size
    there = tl.load(slopes + row * size + column, mask=inside, other=0.0)
    back = tl.load(slopes + column * size + row, mask=inside, other=0.0)
    tl.store(out + row * size + column, (there + back) * (tl.load(gradient) / tl.load(total)), mask=inside)


@triton.jit
def _lengthwise(unit, inverse, towards, out, width, WIDTH: tl.constexpr):
    """The gradient by a vector, from that by its direction: what lies along the direction has no effect."""
    row, place, inside = _vector(width, WIDTH)
    direction = tl.load(unit + place, mask=inside, other=0.0)
    pull = tl.load(towards + place, mask=inside, other=0.0)
    result = (pull - direction * tl.sum(direction * pull, 0)) * tl.load(inverse + row)
    tl.store(out + place, result, mask=inside)


def _padded(size: int) -> int:
    """Return the width of a program's row: one compiled kernel serves all batches of up to 128."""
    return max(int(triton.next_power_of_2(size)), 128)


class _Alignment(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, labels: Tensor, num_classes: int, temperature: float, kl: Divergence,
        include_self: bool, class_balanced: bool,
    ) -> Tensor:  # fmt: skip
        features = features.contiguous()
        size, width = features.shape
        unit = torch.empty_like(features)
        inverse, losses, weights = features.new_empty(3, size)
        loss: Tensor
        loss, total = features.new_empty(2)
        launch(_directions, (size,), features, unit, inverse, width, EPS, WIDTH=triton.next_power_of_2(width))
        cosines = unit @ unit.T
        slopes = torch.empty_like(cosines)
        padded = _padded(size)
        launch(
            _rows, (size,),
            cosines, labels, losses, weights, slopes, size, temperature, etf_cosine(num_classes), FORWARD_SHARE[kl],
            FAR, SELF=include_self, BALANCED=class_balanced, SIZE=padded,
        )  # fmt: skip
        launch(_mean, (1,), losses, weights, loss, total, size, SIZE=padded)
        ctx.save_for_backward(unit, inverse, slopes, total)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        unit, inverse, slopes, total = ctx.saved_tensors
        size, width = unit.shape
        joint = torch.empty_like(slopes)
        launch(_both_ways, (size,), slopes, total, gradient, joint, size, SIZE=_padded(size))
        towards = joint @ unit
        out = torch.empty_like(unit)
        launch(_lengthwise, (size,), unit, inverse, towards, out, width, WIDTH=triton.next_power_of_2(width))
        return out, None, None, None, None, None, None


def gsa_loss(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    temperature: float = 0.07,
    kl: Divergence = "FP",
    include_self: bool = True,
    class_balanced: bool = True,
) -> Tensor:
    """Return the loss of ``fedfeat.geometry.gsa_loss`` for a simplex ETF."""
    loss: Tensor = _Alignment.apply(
        features.float(), labels, num_classes, temperature, kl, include_self, class_balanced
    )
    return loss
