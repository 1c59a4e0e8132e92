"""A batch of images from bytes to what the network sees, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedfeat.data.augment import DeviceImages
from fedfeat.data.trivial import COLUMNS, ENHANCE, OPERATIONS, SHEAR, SMOOTH, TURN
from fedfeat.engines.cuda.kernels.launch import launch

BLOCK = 1024
MOST_PIXELS = 4096  # of an image that one program changes as a whole
WARPS = 8
(
    _IDENTITY, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y, _ROTATE, _BRIGHTNESS, _CONTRAST, _POSTERIZE, _SOLARIZE,
    _AUTOCONTRAST, _EQUALIZE, _COLOUR, _SHARPNESS,
) = map(tl.constexpr, range(len(OPERATIONS)))  # fmt: skip
_SHEAR, _TURN, _ENHANCE, _SMOOTH = map(tl.constexpr, (SHEAR, TURN, ENHANCE, SMOOTH))
_TO_WHOLE = tl.constexpr(1.5 * 2**23)  # added and taken away again, it rounds a small number, halves to even


@triton.jit
def _augment(
    images, indices, crops, flips, brightness, scale, shift, out, height, width, padding,
    CHANNELS: tl.constexpr, MOVE: tl.constexpr, BRIGHTEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = height * width * CHANNELS
    channel, pixel = place % CHANNELS, place // CHANNELS
    top, left, mirrored = _window(crops, flips, sample, padding, MOVE)
    source = images + tl.load(indices + sample) * size
    inside = place < size
    value = _pixel(source, pixel // width, pixel % width, channel, inside, top, left, mirrored, height, width, CHANNELS)
    if BRIGHTEN:
        value = tl.minimum(value * tl.load(brightness + sample), 255.0)
    value = tl.load(shift + channel) + value * tl.load(scale + channel)
    tl.store(out + sample * size + place, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _window(crops, flips, sample, padding, MOVE: tl.constexpr):
    top = 0
    left = 0
    mirrored = 0
    if MOVE:
        top = tl.load(crops + 2 * sample).to(tl.int32) - padding
        left = tl.load(crops + 2 * sample + 1).to(tl.int32) - padding
        mirrored = tl.load(flips + sample).to(tl.int32)
    return top, left, mirrored


@triton.jit
def _pixel(source, row, column, channel, inside, top, left, mirrored, height, width, CHANNELS: tl.constexpr):
    column = tl.where(mirrored != 0, width - 1 - column, column) + left
    row += top
    seen = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.load(source + (row * width + column) * CHANNELS + channel, mask=seen, other=0).to(tl.float32)


@triton.jit
def _trivial(
    images, indices, crops, flips, brightness, changes, scale, shift, out, height, width, padding,
    CHANNELS: tl.constexpr, MOVE: tl.constexpr, BRIGHTEN: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    operation = tl.load(changes + COLUMNS * sample).to(tl.int32)
    strength = tl.load(changes + COLUMNS * sample + 1)
    top, left, mirrored = _window(crops, flips, sample, padding, MOVE)
    size = height * width * CHANNELS
    source = images + tl.load(indices + sample) * size
    place = tl.arange(0, PIXELS)
    there = place < height * width
    row, column = _moved(place // width, place % width, operation, strength, height, width)
    there_before = there & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    grey = tl.zeros([PIXELS], tl.float32)
    if (operation == _CONTRAST) | (operation == _COLOUR):
        for channel in tl.static_range(CHANNELS):
            seen = _pixel(source, row, column, channel, there_before, top, left, mirrored, height, width, CHANNELS)
            share = (0.299 if channel == 0 else (0.587 if channel == 1 else 0.114)) if CHANNELS == 3 else 1.0 / CHANNELS
            grey += seen * share
        if operation == _CONTRAST:
            grey = tl.zeros([PIXELS], tl.float32) + _whole(tl.sum(grey, 0) / (height * width))
    factor, much = 1 + _ENHANCE * strength, tl.abs(strength)
    for channel in tl.static_range(CHANNELS):
        value = _pixel(source, row, column, channel, there_before, top, left, mirrored, height, width, CHANNELS)
        if operation == _BRIGHTNESS:
            value = value * factor
        elif (operation == _CONTRAST) | (operation == _COLOUR):
            value = value * factor + grey * (1 - factor)
        elif operation == _POSTERIZE:
            bits = _whole(6 * much).to(tl.int32)
            value = ((value.to(tl.int32) >> bits) << bits).to(tl.float32)
        elif operation == _SOLARIZE:
            value = tl.where(value < 256 * (1 - much), value, 255 - value)
        elif operation == _AUTOCONTRAST:
            low = tl.min(tl.where(there, value, 255.0), 0)
            high = tl.max(tl.where(there, value, 0.0), 0)
            value = tl.where(high > low, (value - low) * 255 / tl.maximum(high - low, 1.0), value)
        elif operation == _EQUALIZE:
            value = _equalised(value, there, height * width)
        elif operation == _SHARPNESS:
            edge = (row == 0) | (row == height - 1) | (column == 0) | (column == width - 1)
            around = 4 * value
            for down in tl.static_range(-1, 2):
                for right in tl.static_range(-1, 2):
                    y, x = row + down, column + right
                    near = there & (y >= 0) & (y < height) & (x >= 0) & (x < width)
                    around += _pixel(source, y, x, channel, near, top, left, mirrored, height, width, CHANNELS)
            value = value * factor + tl.where(edge, value, _SMOOTH * around) * (1 - factor)
        value = tl.minimum(tl.maximum(value, 0.0), 255.0)
        if BRIGHTEN:
            value = tl.minimum(value * tl.load(brightness + sample), 255.0)
        value = tl.load(shift + channel) + value * tl.load(scale + channel)
        tl.store(out + sample * size + place * CHANNELS + channel, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _whole(value):
    return (value + _TO_WHOLE) - _TO_WHOLE


@triton.jit
def _moved(row, column, operation, strength, height, width):
    angle = tl.where(operation == _ROTATE, _TURN * strength, 0.0)
    aside = tl.where(operation == _SHEAR_X, _SHEAR * strength, 0.0)
    downwards = tl.where(operation == _SHEAR_Y, _SHEAR * strength, 0.0)
    right = tl.where(operation == _TRANSLATE_X, width * strength, 0.0)
    down = tl.where(operation == _TRANSLATE_Y, height * strength, 0.0)
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, x = row - middle_y, column - middle_x
    cosine, sine = tl.cos(angle), tl.sin(angle)
    columns = x * cosine - y * sine + aside * y + right + middle_x
    rows = x * sine + y * cosine + downwards * x + down + middle_y
    return _whole(rows).to(tl.int32), _whole(columns).to(tl.int32)


@triton.jit
def _equalised(value, there, size):
    bins = tl.arange(0, 512)
    which = value.to(tl.int32)
    counts = tl.histogram(tl.where(there, which, 256), 512)
    counts = tl.where(bins < 256, counts, 0)
    high = tl.max(tl.where(counts > 0, bins, 0), 0)
    step = (size - tl.sum(tl.where(bins == high, counts, 0), 0)) // 255
    before = tl.cumsum(counts, 0) - counts
    table = (step // 2 + before) // tl.maximum(step, 1)
    return tl.where(step > 0, tl.gather(table, which, 0).to(tl.float32), value)


class Augment:
    """``DeviceImages.transformed`` with a result of the precision that the network works in.

    It crops, mirrors, brightens, and changes images by TrivialAugment; it neither pastes nor cuts out.
    """

    def __init__(self, images: DeviceImages, dtype: torch.dtype) -> None:
        self.images, self.dtype = images, dtype

    @staticmethod
    def serves(images: DeviceImages, columns: int) -> bool:
        """Whether images are changed in no other way, by a plan of so many further columns."""
        height, width = images.images.shape[1:3]
        return not columns or (columns == COLUMNS and images.augmentation.trivial > 0 and height * width <= MOST_PIXELS)

    def __call__(
        self, indices: Tensor, crops: Tensor, flips: Tensor, brightness: Tensor, changes: Tensor | None = None
    ) -> Tensor:
        """Return normalised images, each changed as its draws say."""
        source = self.images
        _, height, width, channels = source.images.shape
        padding, flip = source.augmentation.crop_padding, source.augmentation.flip
        out = source.images.new_empty(len(indices), height, width, channels, dtype=self.dtype)
        usual = {
            "CHANNELS": channels,
            "MOVE": bool(padding or flip),
            "BRIGHTEN": bool(source.augmentation.brightness),
        }
        sizes = height, width, padding
        if changes is None:
            launch(
                _augment, (len(indices), triton.cdiv(height * width * channels, BLOCK)),
                source.images, indices, crops, flips, brightness, source.scale, source.shift, out, *sizes,
                **usual, BLOCK=BLOCK,
            )  # fmt: skip
        else:
            launch(
                _trivial, (len(indices),),
                source.images, indices, crops, flips, brightness, changes, source.scale, source.shift, out, *sizes,
                **usual, COLUMNS=COLUMNS, PIXELS=triton.next_power_of_2(height * width), num_warps=WARPS,
                enable_fp_fusion=False,  # a product is rounded before it is added to, as by PyTorch's operations
            )  # fmt: skip
        return out.permute(0, 3, 1, 2)
