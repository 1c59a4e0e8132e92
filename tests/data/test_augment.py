from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.data.augment import DeviceImages, crop_and_flip, plan_epoch
from fedfeat.data.dataset import Augmentation


def by_hand(image: np.ndarray, row: int, column: int, flip: bool, padding: int) -> np.ndarray:
    """Pad with zeros, cut, mirror: what the published transform does to one image."""
    height, width, _ = image.shape
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    window = padded[row : row + height, column : column + width]
    return window[:, ::-1] if flip else window


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(3, 8), st.integers(3, 8), st.sampled_from([1, 3]), st.integers(0, 10**6))
def test_crops_and_flips_are_those_of_the_single_image(
    padding: int, height: int, width: int, channels: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (5, height, width, channels), dtype=np.uint8)
    crops = rng.integers(0, 2 * padding + 1, (5, 2))
    flips = rng.random(5) < 0.5
    ours = crop_and_flip(torch.from_numpy(images), torch.from_numpy(crops), torch.from_numpy(flips), padding)
    assert ours.dtype == torch.uint8
    for number in range(5):
        expected = by_hand(images[number], *crops[number], flips[number], padding)
        assert np.array_equal(ours[number].numpy(), expected)


def device_images(augmentation: Augmentation) -> DeviceImages:
    images = np.random.default_rng(0).integers(0, 256, (10, 6, 6, 3), dtype=np.uint8)
    return DeviceImages(
        images,
        np.arange(10),
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3),
        augmentation=augmentation,
        device=torch.device("cpu"),
    )


def test_plain_images_are_normalised_and_lie_channels_last() -> None:
    images = device_images(Augmentation())
    x = images.plain(torch.tensor([3, 1]))
    assert x.shape == (2, 3, 6, 6)
    assert x.is_contiguous(memory_format=torch.channels_last)
    pixel = images.images[3, 2, 4].double() / 255
    expected = (pixel - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.25, 0.3])
    assert torch.allclose(x[0, :, 2, 4].double(), expected, atol=1e-5)


def test_without_augmentation_both_ways_agree() -> None:
    images = device_images(Augmentation())
    draws = plan_epoch(np.random.default_rng(1), 10, images.augmentation)
    chosen = torch.arange(4)
    assert torch.equal(images.augmented(chosen, draws, slice(0, 4)), images.plain(chosen))


def test_brightness_multiplies_and_stops_at_white() -> None:
    images = device_images(Augmentation(brightness=0.5))
    ones = torch.ones(1)
    zeros = torch.zeros(1, 2, dtype=torch.long)
    bright = images.transformed(torch.tensor([0]), zeros, torch.zeros(1, dtype=torch.bool), 1.5 * ones)
    raw = (images.images[0].float() * 1.5).clamp(max=255) / 255
    expected = (raw - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.25, 0.3])
    assert torch.allclose(bright[0].permute(1, 2, 0), expected, atol=1e-5)


def test_draws_cover_their_ranges_and_nothing_else() -> None:
    draws = plan_epoch(np.random.default_rng(0), 4000, Augmentation(crop_padding=4, flip=True, brightness=63 / 255))
    assert sorted(draws.order.tolist()) == list(range(4000))
    assert draws.crops.min() == 0
    assert draws.crops.max() == 8
    assert 0.45 < draws.flips.float().mean() < 0.55
    assert draws.brightness.min() >= 1 - 63 / 255
    assert draws.brightness.max() <= 1 + 63 / 255


def test_what_is_off_is_not_drawn() -> None:
    draws = plan_epoch(np.random.default_rng(0), 100, Augmentation())
    assert not draws.flips.any()
    assert (draws.crops == 0).all()
    assert draws.brightness.unique().tolist() == [1.0]


@pytest.mark.parametrize("purpose", ["order", "crops", "flips"])
def test_the_same_address_draws_the_same_epoch(purpose: str) -> None:
    augmentation = Augmentation(4, True, 0.2)
    one, two = (plan_epoch(np.random.default_rng(5), 50, augmentation) for _ in range(2))
    assert torch.equal(getattr(one, purpose), getattr(two, purpose))
