"""Images as bytes, on the device or on disk: gathered, cropped, flipped, brightened, normalised a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.dataset import Augmentation, is_mapped, release
from fedfeat.data.paste import COLUMNS as PASTE
from fedfeat.data.paste import pasted
from fedfeat.data.trivial import COLUMNS as TRIVIAL
from fedfeat.data.trivial import plan_trivial, trivially_augmented

CENTRE = 2  # columns of where a square is cut out


def change_columns(augmentation: Augmentation, paste: float) -> int:
    """Return how many columns ``EpochPlan.changes`` has."""
    return PASTE * bool(paste) + TRIVIAL * bool(augmentation.trivial) + CENTRE * bool(augmentation.cutout)


class EpochPlan(NamedTuple):
    """All random choices of one client's epoch, in the order in which samples are visited."""

    order: Tensor  # positions in the client's local set
    crops: Tensor  # [n, 2] row and column offset
    flips: Tensor  # [n]
    brightness: Tensor  # [n] factors
    changes: Tensor  # [n, columns] of what else is done to images, such as TrivialAugment; often none


def plan_epoch(rng: np.random.Generator, size: int, augmentation: Augmentation) -> EpochPlan:
    """Draw a permutation and every augmentation of an epoch on the CPU: engines only move small integers."""
    span = 2 * augmentation.crop_padding + 1
    low, high = 1 - augmentation.brightness, 1 + augmentation.brightness
    return EpochPlan(
        order=torch.from_numpy(rng.permutation(size)),
        crops=torch.from_numpy(rng.integers(0, span, size=(size, 2))),
        flips=torch.from_numpy(rng.random(size) < (0.5 if augmentation.flip else 0.0)),
        brightness=torch.from_numpy(rng.uniform(low, high, size).astype(np.float32)),
        changes=torch.cat([*_further_changes(rng, size, augmentation), torch.empty(size, 0)], dim=1),
    )


def _further_changes(rng: np.random.Generator, size: int, augmentation: Augmentation) -> Iterator[Tensor]:
    if augmentation.trivial:
        yield plan_trivial(rng, size, augmentation.trivial)
    if augmentation.cutout:
        yield torch.from_numpy(rng.random((size, CENTRE)).astype(np.float32))


HELD_BYTES = 1 << 28  # pages of a memory map that may be held before they are let go


class DeviceImages:
    """A split of a data set for one device: uint8 [N, H, W, C] and internal labels [N].

    Images are resident on the device, or ``fed`` to it: they stay in memory or in the memory map they come as, and a
    batch is copied when it is asked for. On the CPU a memory map is always read where it is.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augmentation: Augmentation,
        device: torch.device,
        fed: bool = False,
    ) -> None:
        self._map = images if is_mapped(images) and (fed or device.type == "cpu") else None
        if self._map is None:
            self.images = torch.from_numpy(np.array(images)).to("cpu" if fed else device)
        else:
            with warnings.catch_warnings():  # of arrays that cannot be written: nobody writes here
                warnings.simplefilter("ignore")
                self.images = torch.from_numpy(images)
        self._held = 0  # bytes of the memory map, at most
        self.labels = torch.from_numpy(np.array(labels)).to(device)
        self.device = self.labels.device
        self.augmentation = augmentation
        scale = torch.tensor(std, dtype=torch.float32) * 255.0
        self.scale = (1.0 / scale).to(device)
        self.shift = (-torch.tensor(mean, dtype=torch.float32) / torch.tensor(std, dtype=torch.float32)).to(device)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def on_disk(self) -> bool:
        """Whether images are read from a memory map."""
        return self._map is not None

    @property
    def resident(self) -> bool:
        """Whether a captured step can read the images: they are in the device's memory, or in that of the CPU."""
        return self.images.device == self.labels.device

    def gather(self, indices: Tensor) -> Tensor:
        """Return images as bytes on the device."""
        here = indices.to(self.images.device)
        # On the CPU, index_select copies image by image, which takes an eighth of the time.
        chosen = self.images[here] if self.images.is_cuda else self.images.index_select(0, here)
        images = chosen.to(self.device)
        if self._map is not None:
            self._held += images.nbytes
            if self._held > HELD_BYTES:
                release(self._map)
                self._held = 0
        return images

    def plain(self, indices: Tensor) -> Tensor:
        """Return normalised images [B, C, H, W] (channels last in memory), not augmented."""
        return self.normalise(self.gather(indices).float())

    def augmented(self, indices: Tensor, plan: EpochPlan, visited: slice) -> Tensor:
        """Return normalised, augmented images; ``visited`` is the batch's place in the epoch."""
        return self.transformed(indices, *(drawn[visited] for drawn in plan[1:]))

    def transformed(
        self, indices: Tensor, crops: Tensor, flips: Tensor, brightness: Tensor, changes: Tensor | None = None
    ) -> Tensor:
        """Return normalised images, each changed as its draws in the plan say.

        :param changes: columns of those that are pasted, then those of the data set's augmentation.
        """
        images, aug = self.gather(indices), self.augmentation
        changes = images.new_empty(len(images), 0) if changes is None else changes.to(images.device)
        own = TRIVIAL * bool(aug.trivial), CENTRE * bool(aug.cutout)
        pastes, trivial, centres = torch.split(changes, [changes.shape[1] - sum(own), *own], dim=1)
        if pastes.shape[1]:
            images = pasted(images, pastes)
        if aug.crop_padding or aug.flip:
            images = crop_and_flip(images, crops, flips, aug.crop_padding)
        pixels = trivially_augmented(images, trivial) if aug.trivial else images.float()
        if aug.brightness:
            pixels = (pixels * brightness.to(pixels.device)[:, None, None, None]).clamp_(max=255.0)
        normalised = self.normalise(pixels)
        return cut_out(normalised, centres, aug.cutout) if aug.cutout else normalised

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bring pixels [B, H, W, C] in 0..255 to the data set's scale, as [B, C, H, W] (channels last in memory)."""
        return torch.addcmul(self.shift, pixels, self.scale).permute(0, 3, 1, 2)


def cut_out(images: Tensor, centres: Tensor, share: float) -> Tensor:
    """Return normalised images [B, C, H, W] with a square of each at its mean: Cutout (DeVries and Taylor, 2017).

    :param centres: [B, 2] row and column of the square's centre, from 0 to 1; what lies outside the image is lost.
    :param share: side of the square, of the image's.
    """
    holes = []
    for length, centre in zip(images.shape[2:], centres.unbind(dim=1), strict=True):
        side = round(share * length)
        begin = (centre * length).floor()[:, None] - side // 2
        place = torch.arange(length, device=images.device)
        holes.append((place >= begin) & (place < begin + side))
    rows, columns = holes
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def crop_and_flip(images: Tensor, crops: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Cut windows out of images that are zero outside, and mirror some, in one gather.

    :param crops: [B, 2] row and column at which the window begins in the image with ``padding`` zeros around it.
    """
    count, height, width, _ = images.shape
    crops, flips = crops.to(images.device), flips.to(images.device)
    columns = torch.arange(width, device=images.device).expand(count, width)
    columns = torch.where(flips[:, None], columns.flip(1), columns) + crops[:, 1:] - padding
    rows = torch.arange(height, device=images.device) + crops[:, :1] - padding
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    sample = torch.arange(count, device=images.device)[:, None, None]
    window = images[sample, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    return window * inside[..., None]
