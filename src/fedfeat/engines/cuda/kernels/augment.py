"""A batch of images from bytes to what the network sees, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedfeat.data.augment import DeviceImages
from fedfeat.engines.cuda.kernels.launch import launch

BLOCK = 1024


@triton.jit
def _augment(
    images, indices, crops, flips, brightness, scale, shift, out, height, width, padding,
    CHANNELS: tl.constexpr, MOVE: tl.constexpr, BRIGHTEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = height * width * CHANNELS
    channel, pixel = place % CHANNELS, place // CHANNELS
    row, column = pixel // width, pixel % width
    inside = place < size
    if MOVE:
        mirrored = tl.load(flips + sample).to(tl.int32)
        column = tl.where(mirrored != 0, width - 1 - column, column)
        row += tl.load(crops + 2 * sample).to(tl.int32) - padding
        column += tl.load(crops + 2 * sample + 1).to(tl.int32) - padding
    seen = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = images + tl.load(indices + sample) * size
    value = tl.load(source + (row * width + column) * CHANNELS + channel, mask=seen, other=0).to(tl.float32)
    if BRIGHTEN:
        value = tl.minimum(value * tl.load(brightness + sample), 255.0)
    value = tl.load(shift + channel) + value * tl.load(scale + channel)
    tl.store(out + sample * size + place, value.to(out.dtype.element_ty), mask=inside)


class Augment:
    """``DeviceImages.transformed`` with a result of the precision that the network works in."""

    def __init__(self, images: DeviceImages, dtype: torch.dtype) -> None:
        self.images, self.dtype = images, dtype

    def __call__(self, indices: Tensor, crops: Tensor, flips: Tensor, brightness: Tensor) -> Tensor:
        """Return normalised images, each cropped, mirrored and brightened as its draws say."""
        source = self.images
        _, height, width, channels = source.images.shape
        padding, flip = source.augmentation.crop_padding, source.augmentation.flip
        out = source.images.new_empty(len(indices), height, width, channels, dtype=self.dtype)
        launch(
            _augment, (len(indices), triton.cdiv(height * width * channels, BLOCK)),
            source.images, indices, crops, flips, brightness, source.scale, source.shift, out, height, width, padding,
            CHANNELS=channels, MOVE=bool(padding or flip), BRIGHTEN=bool(source.augmentation.brightness), BLOCK=BLOCK,
        )  # fmt: skip
        return out.permute(0, 3, 1, 2)
