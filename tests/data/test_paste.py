"""Replayed images that are shrunk and pasted on a recoloured copy of themselves."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch

from fedfeat.data.paste import COLUMNS, SCALES, pasted, plan_pastes, recoloured


def photographs(count: int = 4, side: int = 20, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, side, side, channels), generator=generator, dtype=torch.uint8)


def test_half_of_the_replayed_are_changed_and_no_other() -> None:
    replayed = np.arange(4000) % 2 == 0
    pastes = plan_pastes(np.random.default_rng(0), replayed, 0.5)
    assert pastes.shape == (4000, COLUMNS)
    assert not pastes[1::2, 0].any()
    assert 0.45 < pastes[::2, 0].mean() < 0.55
    assert np.unique(pastes[:, 1:3].numpy()).tolist() == pytest.approx(list(SCALES))
    for column, low, high in ((3, 0, 1), (4, 0, 1), (5, 0.4, 1.6), (6, 0.4, 1.6), (7, 0.4, 1.6), (8, -0.4, 0.4)):
        drawn = pastes[:, column]
        assert low <= drawn.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < drawn.max() <= high


def test_an_image_without_a_paste_stays_as_it_is() -> None:
    images = photographs()
    pastes = plan_pastes(np.random.default_rng(1), np.zeros(4, dtype=bool), 1.0)
    assert torch.equal(pasted(images, pastes), images.float())
    assert torch.equal(pasted(images, torch.zeros(4, COLUMNS)), images.float())


@pytest.mark.parametrize(("place", "begin"), [((0.0, 0.0), (0, 0)), ((0.999, 0.999), (4, 2)), ((0.5, 0.0), (2, 0))])
def test_the_small_image_lies_opaque_at_its_place_and_the_recoloured_one_around_it(
    place: tuple[float, float], begin: tuple[int, int]
) -> None:
    images = torch.full((1, 20, 20, 3), 100, dtype=torch.uint8)
    got = pasted(images, torch.tensor([[1.0, 0.8, 0.9, *place, 1.5, 1.0, 1.0, 0.0]]))[0, :, :, 0]
    inside = torch.zeros(20, 20, dtype=torch.bool)
    inside[begin[0] : begin[0] + 16, begin[1] : begin[1] + 18] = True
    assert (got[inside] == 100).all()
    assert (got[~inside] == 150).all()


def test_the_small_image_is_the_whole_one_shrunk() -> None:
    ramp = torch.arange(20.0)[None, :, None, None].expand(1, 20, 20, 1) * 10
    got = pasted(ramp, torch.tensor([[1.0, 0.8, 0.8, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]]))[0, :16, 0, 0]
    expected = ((torch.arange(16) + 0.5) * 20 / 16 - 0.5).clamp(min=0) * 10
    assert torch.allclose(got, expected.round(), atol=1.0)


def test_hue_turns_as_it_does_pixel_by_pixel() -> None:
    pixels = photographs(side=5).float()
    turn = torch.tensor([0.3, -0.25, 0.4, 0.0])
    factors = torch.stack([torch.ones(4), torch.ones(4), torch.ones(4), turn], dim=1)
    got = recoloured(pixels, factors)
    for number in range(4):
        for pixel, ours in zip(pixels[number].view(-1, 3) / 255, got[number].view(-1, 3) / 255, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            expected = colorsys.hsv_to_rgb((hue + float(turn[number])) % 1, saturation, value)
            assert ours.tolist() == pytest.approx(expected, abs=1e-4)


def test_contrast_and_saturation_blend_with_grey() -> None:
    pixels = photographs(2, 6).float()
    grey = pixels @ torch.tensor([0.299, 0.587, 0.114])
    flat = recoloured(pixels, torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]))
    assert torch.allclose(flat[0], grey[0].mean().expand(6, 6, 3), atol=1e-2)
    assert torch.allclose(flat[1], grey[1][..., None].expand(6, 6, 3), atol=1e-2)


def test_grey_images_have_neither_saturation_nor_hue() -> None:
    pixels = photographs(2, 6, 1).float()
    factors = torch.tensor([[1.0, 1.0, 0.4, 0.3], [1.0, 1.0, 1.6, -0.3]])
    assert torch.allclose(recoloured(pixels, factors), pixels)
