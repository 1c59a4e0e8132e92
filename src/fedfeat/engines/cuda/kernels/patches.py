"""The patches that a network's first convolution sees, written once as the rows of a matrix."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fedfeat.engines.cuda.kernels.launch import launch
from fedfeat.models.backbones import patch_geometry

TILE = 4096  # entries that one program writes


@triton.jit(do_not_specialize=("rows", "height", "width", "across", "down"))
def _patches(
    x, out, rows, height, width, across, down,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr, AROUND: tl.constexpr,
    ENTRIES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    line, image = row // across, row // across // down
    channel, within = column // (SIZE * SIZE), column % (SIZE * SIZE)
    y = (line % down * STEP - AROUND)[:, None] + (within // SIZE)[None, :]
    z = (row % across * STEP - AROUND)[:, None] + (within % SIZE)[None, :]
    seen = (row < rows)[:, None] & (channel < CHANNELS)[None, :] & (y >= 0) & (y < height) & (z >= 0) & (z < width)
    place = ((image[:, None] * height + y) * width + z) * CHANNELS + channel[None, :]
    value = tl.load(x + place, mask=seen, other=0.0)
    written = (row < rows)[:, None] & (column < ENTRIES)[None, :]
    tl.store(out + row[:, None] * ENTRIES + column[None, :], value.to(out.dtype.element_ty), mask=written)


def patches(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return the patches of images that need no gradient, [B, H, W, entries], rounded as autocast would."""
    x = x.contiguous(memory_format=torch.channels_last)
    size, step, around, entries = patch_geometry(conv)
    batch, channels, height, width = x.shape
    down, across = ((pixels + 2 * around - size) // step + 1 for pixels in (height, width))
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    out = x.new_empty(batch, down, across, entries, dtype=dtype)
    rows, columns = batch * down * across, triton.next_power_of_2(entries)
    tile = max(TILE // columns, 1)
    launch(
        _patches, (triton.cdiv(rows, tile),),
        x, out, rows, height, width, across, down,
        CHANNELS=channels, SIZE=size, STEP=step, AROUND=around, ENTRIES=entries, ROWS=tile, COLUMNS=columns,
    )  # fmt: skip
    return out
