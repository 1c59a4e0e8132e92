"""TrivialAugment's operations, held to Pillow's; Cutout; both leave the rest of a plan as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfeat.data.augment import cut_out, plan_epoch
from fedfeat.data.dataset import Augmentation
from fedfeat.data.trivial import COLUMNS, OPERATIONS, plan_trivial, trivially_augmented

Image = pytest.importorskip("PIL.Image")
from PIL import ImageEnhance, ImageOps  # noqa: E402 - after it is known to be there

ENHANCED = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "colour": ImageEnhance.Color,
    "sharpness": ImageEnhance.Sharpness,
}


def photographs(count: int = 3, side: int = 16, channels: int = 3) -> Tensor:
    """Return images with smooth areas, edges, and few of the possible values."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(20, 200, (count, channels, 4, 4), generator=generator).float()
    smooth = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 255)
    return smooth.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def changed(images: Tensor, operation: str, strength: float) -> Tensor:
    plan = torch.tensor([[OPERATIONS.index(operation), strength]]).expand(len(images), COLUMNS)
    return trivially_augmented(images, plan)


def by_pillow(images: Tensor, operation: str, strength: float) -> Tensor:
    found = []
    for pixels in images:
        image = Image.fromarray(pixels.numpy())
        if operation in ENHANCED:
            image = ENHANCED[operation](image).enhance(1 + 0.99 * strength)
        elif operation == "posterize":
            image = ImageOps.posterize(image, 8 - round(6 * abs(strength)))
        elif operation == "solarize":
            image = ImageOps.solarize(image, 256 * (1 - abs(strength)))
        elif operation == "autocontrast":
            image = ImageOps.autocontrast(image)
        elif operation == "equalize":
            image = ImageOps.equalize(image)
        found.append(torch.from_numpy(np.array(image)))
    return torch.stack(found).float()


@pytest.mark.parametrize("strength", [0.0, 0.5, -0.5, 1.0, -1.0])
@pytest.mark.parametrize("operation", ["identity", *ENHANCED, "posterize", "solarize", "autocontrast", "equalize"])
def test_colours_change_as_pillow_changes_them(operation: str, strength: float) -> None:
    images = photographs()
    ours, theirs = changed(images, operation, strength), by_pillow(images, operation, strength)
    roundings = 2 if operation in ("colour", "sharpness") else 1  # of the other image, and of the mixture
    assert (ours - theirs).abs().max() <= roundings
    if abs(strength) == 1 and operation != "identity":
        assert (theirs - images).abs().max() > 10, "the operation does something here"


@pytest.mark.parametrize("operation", ["autocontrast", "equalize"])
def test_an_image_of_one_colour_stays(operation: str) -> None:
    plain = torch.full((1, 8, 8, 3), 77, dtype=torch.uint8)
    assert torch.equal(changed(plain, operation, 1.0), plain.float())
    assert torch.equal(by_pillow(plain, operation, 1.0), plain.float())


@pytest.mark.parametrize(
    ("operation", "strength", "expected"),
    [
        ("translate x", 0.25, lambda image: np.pad(image, ((0, 0), (0, 4)))[:, 4:]),
        ("translate x", -0.25, lambda image: np.pad(image, ((0, 0), (4, 0)))[:, :-4]),
        ("translate y", 0.5, lambda image: np.pad(image, ((0, 8), (0, 0)))[8:]),
        ("rotate", 2 / 3, lambda image: np.rot90(image, k=1)),
        ("rotate", -2 / 3, lambda image: np.rot90(image, k=-1)),
        ("shear x", 0.0, lambda image: image),
    ],
)
def test_images_are_moved_around_their_centre(operation: str, strength: float, expected: object) -> None:
    images = photographs(1, channels=1)
    moved = changed(images, operation, strength)[0, :, :, 0].numpy()
    assert np.array_equal(moved, expected(images[0, :, :, 0].numpy().astype(np.float32)))  # type: ignore[operator]


@pytest.mark.parametrize(("operation", "axis"), [("shear x", 0), ("shear y", 1)])
def test_a_shear_moves_rows_or_columns_by_their_distance_from_the_centre(operation: str, axis: int) -> None:
    image = photographs(1, channels=1)
    sheared = changed(image, operation, 1.0)[0, :, :, 0]
    for line in range(16):
        shift = round(0.99 * (line - 7.5))
        before = np.roll(image[0, :, :, 0].select(axis, line).numpy().astype(np.float32), -shift)
        if shift:
            before[slice(16 - shift, None) if shift > 0 else slice(0, -shift)] = 0
        assert np.array_equal(sheared.select(axis, line).numpy(), before), line


def test_every_image_has_its_own_operation() -> None:
    images = photographs(len(OPERATIONS))
    plan = torch.stack([torch.arange(len(OPERATIONS)).float(), torch.full((len(OPERATIONS),), 0.7)], dim=1)
    ours = trivially_augmented(images, plan)
    for number, operation in enumerate(OPERATIONS):
        assert torch.equal(ours[number : number + 1], changed(images[number : number + 1], operation, 0.7)), operation
    assert ours.min() >= 0
    assert ours.max() <= 255


def test_operations_and_strengths_are_drawn_evenly() -> None:
    plan = plan_trivial(np.random.default_rng(0), 14_000, 0.5)
    assert plan.shape == (14_000, COLUMNS)
    assert torch.bincount(plan[:, 0].long()).tolist() == pytest.approx([1000] * len(OPERATIONS), rel=0.12)
    assert plan[:, 1].abs().max() == 0.5
    assert len(plan[:, 1].unique()) == 61
    assert abs(float(plan[:, 1].mean())) < 0.01


def test_a_square_is_cut_out() -> None:
    images = torch.ones(3, 2, 8, 8)
    centres = torch.tensor([[0.5, 0.5], [0.0, 0.99], [0.99, 0.0]])
    cut = cut_out(images, centres, 0.5)
    expected = torch.ones(3, 8, 8)
    expected[0, 2:6, 2:6] = 0
    expected[1, :2, 5:] = 0
    expected[2, 5:, :2] = 0
    assert torch.equal(cut, expected[:, None].expand_as(cut))


def test_the_rest_of_a_plan_stays() -> None:
    more = Augmentation(1, True, 0.2, trivial=1.0, cutout=0.5)
    plain, plan = (plan_epoch(np.random.default_rng(3), 9, a) for a in (Augmentation(1, True, 0.2), more))
    assert all(torch.equal(a, b) for a, b in zip(plain[:4], plan[:4], strict=True))
    assert plain.changes.shape == (9, 0)
    assert plan.changes.shape == (9, 4)
