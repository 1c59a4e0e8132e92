"""BatchNorm, the shortcut's sum and ReLU together, as few passes over an activation as its statistics allow.

An activation with channels last is a matrix of places and channels. Forward reads it twice: once for the statistics,
once to write the result. Backward reads it twice as well: for the two sums of BatchNorm's gradient, and to write it.
Sums are taken in a fixed order, so a step has the same bytes whenever it is repeated.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedfeat.engines.cuda.kernels.launch import launch
from fedfeat.models.backbones import Activation, BatchNorm

TILE = 4096  # entries that one program holds at a time
PARTS = 256  # into which an activation is cut for a sum; each is a program of its own
WARPS = 4
STAGES = 1  # tiles of a sum that are on their way at once
# One compiled kernel serves batches of all sizes.
SIZES = ("rows", "per_part", "parts", "height", "width")


@triton.jit
def _tile(rows, channels, per_part, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Rows and channels that a program turns into others, their places in memory, and which of them exist.

    Sums are taken over all parts at once, each from its begin to its end. So the ends come first here: they were read
    last, and some of them still lie in the cache.
    """
    tiles = per_part // ROWS
    parts = tl.num_programs(0) // tiles
    part, back = tl.program_id(0) % parts, tl.program_id(0) // parts
    row = part * per_part + (tiles - 1 - back) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return row, column, row[:, None] * channels + column[None, :], (row < rows)[:, None]


@triton.jit
def _all_parts(channels, parts, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """Channels whose sums over parts a program joins, the places of those sums, and which of them exist."""
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, PARTS)
    return column, part[:, None] * channels + column[None, :], (part < parts)[:, None]


@triton.jit
def _affine(weight, bias, mean, rstd, column):
    """BatchNorm as a scale and a shift, with the two statistics that they come from."""
    centre, narrow = tl.load(mean + column), tl.load(rstd + column)
    scale = tl.load(weight + column) * narrow
    return centre, narrow, scale, tl.load(bias + column) - centre * scale


@triton.jit(do_not_specialize=SIZES)
def _moments_of_parts(
    x, sums, squares, rows, channels, per_part,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of deviations from the first row, and of their squares, over one part of the rows."""
    part = tl.program_id(0)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.load(x + column).to(tl.float32)[None, :]  # near the mean, so that no digits are lost
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    square = tl.zeros([ROWS, CHANNELS], tl.float32)
    end = tl.minimum(part * per_part + per_part, rows)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        inside = (row < end)[:, None]
        value = tl.load(x + row[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
        away = tl.where(inside, value - first, 0.0)
        total += away
        square += away * away
    tl.store(sums + part * channels + column, tl.sum(total, 0))
    tl.store(squares + part * channels + column, tl.sum(square, 0))


@triton.jit(do_not_specialize=SIZES)
def _join_moments(
    x, sums, squares, mean, rstd, running_mean, running_var,
    rows, channels, parts, momentum, eps, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation of all rows; running statistics move towards them."""
    column, place, inside = _all_parts(channels, parts, PARTS, CHANNELS)
    off = tl.sum(tl.load(sums + place, mask=inside, other=0.0), 0) / rows
    square = tl.sum(tl.load(squares + place, mask=inside, other=0.0), 0)
    square = tl.maximum(square - off * off * rows, 0.0)
    joint = tl.load(x + column).to(tl.float32) + off
    tl.store(mean + column, joint)
    tl.store(rstd + column, 1.0 / tl.sqrt_rn(square / rows + eps))
    old_mean, old_var = tl.load(running_mean + column), tl.load(running_var + column)
    tl.store(running_mean + column, old_mean + momentum * (joint - old_mean))
    tl.store(running_var + column, old_var + momentum * (square / tl.maximum(rows - 1, 1) - old_var))


@triton.jit(do_not_specialize=SIZES)
def _normalise(
    x, skip, y, thin, weight, bias, mean, spread, rows, channels, per_part, height, width, eps, RUNNING: tl.constexpr,
    SKIP: tl.constexpr, RELU: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The result, and every STEP-th pixel of it once more; the spread is a running variance or an inverse deviation."""
    row, column, place, inside = _tile(rows, channels, per_part, ROWS, CHANNELS)
    narrow = tl.load(spread + column)
    if RUNNING:
        narrow = 1.0 / tl.sqrt_rn(narrow + eps)
    scale = tl.load(weight + column) * narrow
    shift = tl.load(bias + column) - tl.load(mean + column) * scale
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if SKIP:
        value += tl.load(skip + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)
    if STEP > 1:
        there, kept = _thinned(row, height, width, STEP)
        place = there[:, None] * channels + column[None, :]
        tl.store(thin + place, value.to(y.dtype.element_ty), mask=inside & kept[:, None])


@triton.jit
def _thinned(row, height, width, STEP: tl.constexpr):
    """Where a row stands among every STEP-th pixel of every STEP-th line, and whether it does."""
    line, across = row // width, row % width
    image, down = line // height, line % height
    there = (image * tl.cdiv(height, STEP) + down // STEP) * tl.cdiv(width, STEP) + across // STEP
    return there, (down % STEP == 0) & (across % STEP == 0)


@triton.jit
def _passed_on(
    dy, dthin, x, y, row, column, inside, scale, shift, channels, height, width,
    SKIP: tl.constexpr, RELU: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The gradient behind the ReLU, and the activation; what was cut off is known from x, or from y with a skip."""
    place = row[:, None] * channels + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
    if RELU and SKIP:
        result = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    else:
        result = value * scale[None, :] + shift[None, :]
    if STEP == 1:
        gradient += tl.load(dthin + place, mask=inside, other=0.0).to(tl.float32)
    if STEP > 1:
        there, kept = _thinned(row, height, width, STEP)
        place = there[:, None] * channels + column[None, :]
        gradient += tl.load(dthin + place, mask=inside & kept[:, None], other=0.0).to(tl.float32)
    if RELU:
        gradient = tl.where(result > 0.0, gradient, 0.0)
    return gradient, value


@triton.jit(do_not_specialize=SIZES)
def _gradients_of_parts(
    dy, dthin, x, y, weight, bias, mean, rstd, sums, products, rows, channels, per_part, height, width,
    SKIP: tl.constexpr, RELU: tl.constexpr, STEP: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient, and of its product with the normalised activation, over one part of the rows."""
    part = tl.program_id(0)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    centre, narrow, scale, shift = _affine(weight, bias, mean, rstd, column)
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    product = tl.zeros([ROWS, CHANNELS], tl.float32)
    end = tl.minimum(part * per_part + per_part, rows)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        inside = (row < end)[:, None]
        gradient, value = _passed_on(
            dy, dthin, x, y, row, column, inside, scale, shift, channels, height, width, SKIP, RELU, STEP
        )
        total += gradient
        product += gradient * (value - centre[None, :])
    tl.store(sums + part * channels + column, tl.sum(total, 0))
    tl.store(products + part * channels + column, tl.sum(product, 0) * narrow)


@triton.jit(do_not_specialize=SIZES)
def _join_gradients(sums, products, dweight, dbias, channels, parts, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    column, place, inside = _all_parts(channels, parts, PARTS, CHANNELS)
    tl.store(dbias + column, tl.sum(tl.load(sums + place, mask=inside, other=0.0), 0))
    tl.store(dweight + column, tl.sum(tl.load(products + place, mask=inside, other=0.0), 0))


@triton.jit(do_not_specialize=SIZES)
def _descend(
    dy, dthin, x, y, dx, dskip, weight, bias, mean, rstd, dweight, dbias, rows, channels, per_part, height, width,
    SKIP: tl.constexpr, RELU: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradient of the activation before BatchNorm, and of the skip."""
    row, column, place, inside = _tile(rows, channels, per_part, ROWS, CHANNELS)
    centre, narrow, scale, shift = _affine(weight, bias, mean, rstd, column)
    gradient, value = _passed_on(
        dy, dthin, x, y, row, column, inside, scale, shift, channels, height, width, SKIP, RELU, STEP
    )
    if SKIP:
        tl.store(dskip + place, gradient.to(dskip.dtype.element_ty), mask=inside)
    normalised = (value - centre[None, :]) * narrow[None, :]
    common = (tl.load(dbias + column)[None, :] + normalised * tl.load(dweight + column)[None, :]) / rows
    tl.store(dx + place, (scale[None, :] * (gradient - common)).to(dx.dtype.element_ty), mask=inside)


class _Plan:
    """How an activation [B, C, H, W] is cut into programs."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.rows = x.numel() // self.channels
        self.block = min(64, self.channels & -self.channels)  # channels side by side: a power of two that divides them
        self.across = self.channels // self.block
        self.tile = max(TILE // self.block, 1)
        most = max(PARTS // self.across, 1)
        each = triton.cdiv(triton.cdiv(self.rows, self.tile), most)  # tiles of a part
        self.per_part = each * self.tile
        self.parts = triton.cdiv(self.rows, self.per_part)
        self.tiles = (self.parts * each, self.across)
        self.padded_parts = triton.next_power_of_2(most)
        self.narrow = min(16, self.block)  # channels of a program that joins parts
        self.joins = (self.channels // self.narrow,)


class NormRelu(torch.autograd.Function):
    """``relu(batch_norm(x) + skip)`` in training mode, and every ``step``-th pixel of it.

    The two results are one activation for its two users, the next convolution and the next shortcut: their gradients
    then arrive one by one, and are added where they are read.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, skip: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor,
        running_var: Tensor, momentum: float, eps: float, relu: bool, step: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = x.contiguous(memory_format=torch.channels_last)
        plan = _Plan(x)
        parts = x.new_empty(2, plan.parts, plan.channels, dtype=torch.float32)
        mean, rstd = x.new_empty(2, plan.channels, dtype=torch.float32)
        launch(
            _moments_of_parts, (plan.parts, plan.across),
            x, parts[0], parts[1], plan.rows, plan.channels, plan.per_part,
            ROWS=plan.tile, CHANNELS=plan.block, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        launch(
            _join_moments, plan.joins,
            x, parts[0], parts[1], mean, rstd, running_mean, running_var, plan.rows, plan.channels, plan.parts,
            momentum, eps, PARTS=plan.padded_parts, CHANNELS=plan.narrow,
        )  # fmt: skip
        y, thin = _normalised(plan, x, skip, weight, bias, mean, rstd, None, relu=relu, step=step)
        ctx.plan, ctx.relu, ctx.skip, ctx.step = plan, relu, skip is not None, step
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y if relu and skip is not None else None, weight, bias, mean, rstd)
        return y, thin

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dthin: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, y, weight, bias, mean, rstd = ctx.saved_tensors
        plan: _Plan = ctx.plan
        dy = torch.zeros_like(x) if dy is None else dy.contiguous(memory_format=torch.channels_last)
        dthin = None if dthin is None else dthin.contiguous(memory_format=torch.channels_last)
        parts = x.new_empty(2, plan.parts, plan.channels, dtype=torch.float32)
        dweight, dbias = x.new_empty(2, plan.channels, dtype=torch.float32)
        dx = torch.empty_like(x)
        dskip = torch.empty_like(x) if ctx.skip else None
        kind = {"SKIP": ctx.skip, "RELU": ctx.relu, "STEP": 0 if dthin is None else ctx.step, "CHANNELS": plan.block}
        launch(
            _gradients_of_parts, (plan.parts, plan.across),
            dy, dthin, x, y, weight, bias, mean, rstd, parts[0], parts[1], plan.rows, plan.channels, plan.per_part,
            *x.shape[2:], **kind, ROWS=plan.tile, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        launch(
            _join_gradients, plan.joins,
            parts[0], parts[1], dweight, dbias, plan.channels, plan.parts, PARTS=plan.padded_parts, CHANNELS=plan.narrow
        )  # fmt: skip
        launch(
            _descend, plan.tiles,
            dy, dthin, x, y, dx, dskip, weight, bias, mean, rstd, dweight, dbias, plan.rows, plan.channels,
            plan.per_part, *x.shape[2:], **kind, ROWS=plan.tile, num_warps=WARPS,
        )  # fmt: skip
        return dx, dskip, dweight, dbias, None, None, None, None, None, None


def norm_relu(norm: BatchNorm, x: Tensor, skip: Tensor | None, *, step: int, relu: bool) -> Activation:
    """BatchNorm, the shortcut's sum and ReLU in our own kernels; in evaluation mode there is no gradient."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if norm.training:
        whole, thin = NormRelu.apply(
            x, skip, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps, relu, step
        )
        return Activation(whole, thin)
    x = x.contiguous(memory_format=torch.channels_last)
    mean, var = norm.running_mean, norm.running_var
    return Activation(
        *_normalised(_Plan(x), x, skip, norm.weight, norm.bias, mean, var, norm.eps, relu=relu, step=step)
    )


def _normalised(
    plan: _Plan, x: Tensor, skip: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, spread: Tensor,
    eps: float | None, *, relu: bool, step: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Write the result and what the next shortcut takes of it; with ``eps`` the spread is a variance."""
    skip = None if skip is None else skip.contiguous(memory_format=torch.channels_last)
    y = torch.empty_like(x)
    # Two looks at one memory where the shortcut takes every pixel.
    thin = y.view_as(y) if step == 1 else torch.empty_like(x[:, :, ::step, ::step])
    launch(
        _normalise, plan.tiles,
        x, skip, y, thin, weight, bias, mean, spread, plan.rows, plan.channels, plan.per_part, *x.shape[2:], eps or 0.0,
        RUNNING=eps is not None, SKIP=skip is not None, RELU=relu, STEP=step, ROWS=plan.tile, CHANNELS=plan.block,
        num_warps=WARPS,
    )  # fmt: skip
    return y, thin
