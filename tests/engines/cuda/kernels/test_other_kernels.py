"""Augmentation and SGD in kernels of our own, beside PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from fedfeat.data.augment import DeviceImages, plan_epoch
from fedfeat.data.dataset import Augmentation
from fedfeat.data.trivial import OPERATIONS
from fedfeat.engines.cuda.kernels.augment import Augment
from fedfeat.engines.cuda.kernels.descend import Descend
from fedfeat.engines.cuda.kernels.patches import patches
from fedfeat.models import FlatModel, LinearHead, Network
from fedfeat.models.backbones import ResNet, SmallCNN, by_patches, unfolded

pytestmark = pytest.mark.interpreter
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(2, True, 0.4), Augmentation(3, False, 0.0)])
@pytest.mark.parametrize("shape", [(5, 9, 3), (8, 8, 1)])
def test_augmented_images_are_those_of_pytorch(augmentation: Augmentation, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, *shape), dtype=np.uint8)
    mean, std = tuple(rng.random(shape[2])), tuple(0.1 + rng.random(shape[2]))
    labels = np.zeros(20, dtype=np.int64)
    images = DeviceImages(pixels, labels, mean=mean, std=std, augmentation=augmentation, device=DEVICE)
    draws = plan_epoch(rng, 20, augmentation)
    chosen = draws.order[:13].to(DEVICE)
    wanted = images.augmented(chosen, draws, slice(0, 13))
    on_device = [t[:13].to(DEVICE) for t in (draws.crops, draws.flips, draws.brightness)]
    found = Augment(images, torch.float32)(chosen, *on_device)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-5)
    assert found.permute(0, 2, 3, 1).is_contiguous()
    assert Augment(images, torch.bfloat16)(chosen, *on_device).dtype == torch.bfloat16


@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(2, True, 0.4)])
@pytest.mark.parametrize("shape", [(18, 24, 3), (20, 17, 1)])
def test_trivially_augmented_images_are_those_of_pytorch(augmentation: Augmentation, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    strengths = torch.tensor([-1.0, -0.4, 0.0, 0.5, 1.0])
    plans = torch.cartesian_prod(torch.arange(float(len(OPERATIONS))), strengths)
    count = len(plans)
    smooth = np.clip(rng.normal(120, 45, (count, 5, 6, shape[2])), 0, 255).astype(np.uint8)  # few values, some edges
    pixels = np.repeat(np.repeat(smooth, 4, axis=1), 4, axis=2)[:, : shape[0], : shape[1]]
    mean, std = tuple(rng.random(shape[2])), tuple(0.1 + rng.random(shape[2]))
    more, labels = replace(augmentation, trivial=1.0), np.zeros(count, dtype=np.int64)
    images = DeviceImages(pixels, labels, mean=mean, std=std, augmentation=more, device=DEVICE)
    draws = plan_epoch(rng, count, more)._replace(changes=plans)
    on_device = [t.to(DEVICE) for t in draws[1:]]
    chosen = draws.order.to(DEVICE)
    wanted = images.transformed(chosen, *on_device)
    found = Augment(images, torch.float32)(chosen, *on_device)
    apart = (found - wanted).abs().flatten(1).amax(dim=1) > 1e-4
    assert not apart.any(), {(OPERATIONS[int(o)], s) for o, s in plans[apart.cpu()].tolist()}
    plain = DeviceImages(pixels, labels, mean=mean, std=std, augmentation=augmentation, device=DEVICE)
    changed = (plain.transformed(chosen, *on_device[:3]) - wanted).abs().flatten(1).amax(dim=1) > 0.01
    assert {OPERATIONS[int(o)] for o in plans[changed.cpu(), 0]} | {"identity", "colour"} == set(OPERATIONS)


def test_one_kernel_serves_trivialaugment_alone_and_images_that_are_not_too_large() -> None:
    def images(side: int, **more: float) -> DeviceImages:
        pixels, labels = np.zeros((1, side, side, 3), dtype=np.uint8), np.zeros(1, dtype=np.int64)
        augmentation = Augmentation(2, True, 0.4, **more)
        return DeviceImages(pixels, labels, mean=(0,) * 3, std=(1,) * 3, augmentation=augmentation, device=DEVICE)

    assert Augment.serves(images(8), 0)
    assert Augment.serves(images(64, trivial=1.0), 2)
    assert not Augment.serves(images(65, trivial=1.0), 2)
    assert not Augment.serves(images(8, cutout=0.5), 2)
    assert not Augment.serves(images(8, trivial=1.0), 11)  # with pasted exemplars


@pytest.mark.parametrize("wide_stem", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 9, 6), (3, 1, 8, 8)])
def test_patches_are_those_of_pytorch(wide_stem: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    conv = ResNet(shape[1], wide_stem=wide_stem).stem[0].to(DEVICE)
    images = torch.randn(shape, device=DEVICE)
    assert torch.equal(patches(images, conv), unfolded(images, conv))
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        rounded = patches(images.to(memory_format=torch.channels_last), conv)
        product = by_patches(images, conv, patches)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), unfolded(images, conv), rtol=2**-7, atol=0)  # the interpreter cuts
    torch.testing.assert_close(product.float(), conv(images), rtol=2**-5, atol=2**-5)


def model() -> FlatModel:
    torch.manual_seed(0)
    head = LinearHead(16, seed=0)
    head.grow(3, 0)
    return FlatModel(Network(SmallCNN(1, width=8), head).to(DEVICE))


def test_steps_are_those_of_pytorchs_sgd() -> None:
    flat, other = model(), model()
    optimiser = torch.optim.SGD(other.parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    step = Descend(flat.views(flat.weights))
    velocity, rate = torch.zeros_like(flat.weights), torch.tensor(0.1, device=DEVICE)
    running = flat.vector[flat.num_trainable :].clone()
    for _ in range(3):
        gradients: list[Tensor | None] = [torch.randn(p.shape, device=DEVICE) for p in flat.parameters]
        gradients[1] = None  # a layer that the loss does not touch
        for parameter, gradient in zip(other.parameters, gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
        optimiser.step()
        step(gradients, flat.weights, velocity, None, rate, momentum=0.9, decay=0.01)
    torch.testing.assert_close(flat.weights, other.weights, rtol=1e-6, atol=1e-7)
    assert torch.equal(flat.vector[flat.num_trainable :], running)  # of BatchNorm, which no step moves


def test_rounded_gradients_and_the_rounded_copy_of_the_weights() -> None:
    flat = model()
    before, velocity = flat.weights.clone(), torch.zeros_like(flat.weights)
    half = flat.weights.to(torch.bfloat16)
    gradients = [_gradient(p) for p in flat.parameters]
    assert {g.dtype for g in gradients} == {torch.float32, torch.bfloat16}
    flatly = torch.zeros_like(flat.weights)
    for view, gradient in zip(flat.views(flatly), gradients, strict=True):
        view.copy_(gradient)
    step = Descend(flat.views(flat.weights))
    step(gradients, flat.weights, velocity, half, torch.tensor(0.5, device=DEVICE), momentum=0.9, decay=0.0)
    torch.testing.assert_close(flat.weights, before - 0.5 * flatly)
    torch.testing.assert_close(half.float(), flat.weights, rtol=2**-7, atol=0)  # the interpreter cuts, a GPU rounds


def _gradient(parameter: nn.Parameter) -> Tensor:
    drawn = torch.randn(parameter.shape, device=DEVICE)
    return drawn.to(torch.bfloat16) if parameter.dim() == 4 else drawn
