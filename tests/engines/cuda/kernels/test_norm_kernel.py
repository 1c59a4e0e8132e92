"""BatchNorm with the shortcut's sum and ReLU in our kernels, beside the textbook in double precision."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")

from fedfeat.engines.cuda.kernels import norm as kernel
from fedfeat.models.backbones import BatchNorm, ResNet, SmallCNN, activated
from fedfeat.models.network import initialise

pytestmark = pytest.mark.interpreter
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Case:
    """An activation, what came by the shortcut, and a layer with numbers of its own."""

    x: Tensor
    skip: Tensor | None
    norm: BatchNorm
    step: int
    relu: bool

    def gradients(self, out: Tensor, thin: Tensor) -> list[Tensor]:
        """Return the gradients of a fixed linear function of both results."""
        rng = torch.Generator().manual_seed(5)
        total = (out * torch.randn(out.shape, generator=rng).to(out)).sum()
        total = total + (thin * torch.randn(thin.shape, generator=rng).to(thin)).sum()
        inputs = [self.x, self.norm.weight, self.norm.bias, *([] if self.skip is None else [self.skip])]
        return list(torch.autograd.grad(total, inputs))

    def doubled(self) -> Case:
        skip = None if self.skip is None else self.skip.detach().double().requires_grad_()
        x = self.x.detach().double().requires_grad_()
        return Case(x, skip, copy.deepcopy(self.norm).double(), self.step, self.relu)

    def by_hand(self) -> tuple[Tensor, Tensor]:
        n = self.norm
        out = F.batch_norm(self.x, n.running_mean, n.running_var, n.weight, n.bias, True, n.momentum or 0.0, n.eps)
        out = out if self.skip is None else out + self.skip
        out = F.relu(out) if self.relu else out
        return out, out[:, :, :: self.step, :: self.step]


def make(shape: tuple[int, ...], *, skip: bool, relu: bool, step: int, centre: float = 2.0) -> Case:
    rng = torch.Generator().manual_seed(sum(shape) + step)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=rng).to(DEVICE)

    def activation(middle: float) -> Tensor:
        return (draw(*shape) + middle).contiguous(memory_format=torch.channels_last).requires_grad_()

    norm = BatchNorm(shape[1], device=DEVICE)
    norm.weight.data, norm.bias.data = draw(shape[1]), draw(shape[1])
    assert norm.running_mean is not None
    norm.running_mean.copy_(draw(shape[1]))
    return Case(activation(centre), activation(0.0) if skip else None, norm, step, relu)


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).norm() <= tolerance * expected.norm()


# Every pair of a shape with a shortcut and of a shape with a way through ReLU and stride stands here once.
@pytest.mark.parametrize(
    ("shape", "skip", "relu", "step"),
    [
        ((3, 64, 5, 7), True, True, 1),
        ((3, 64, 5, 7), False, True, 2),
        ((3, 64, 5, 7), False, False, 1),
        ((3, 64, 5, 7), True, True, 3),
        ((4, 16, 1, 2), False, True, 1),
        ((4, 16, 1, 2), True, True, 2),
        ((4, 16, 1, 2), True, False, 1),
        ((4, 16, 1, 2), False, True, 3),
        ((5, 128, 4, 4), True, True, 1),
        ((5, 128, 4, 4), False, True, 2),
        ((5, 128, 4, 4), True, False, 1),
        ((5, 128, 4, 4), False, True, 3),
        ((3, 24, 3, 3), False, True, 1),
        ((3, 24, 3, 3), True, True, 2),
        ((3, 24, 3, 3), False, False, 1),
        ((3, 24, 3, 3), True, True, 3),
    ],
)
def test_results_gradients_and_running_statistics(
    shape: tuple[int, ...], skip: bool, relu: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "TILE", 1024)
    monkeypatch.setattr(kernel, "PARTS", 3)
    ours = make(shape, skip=skip, relu=relu, step=step)
    reference = ours.doubled()
    out, thin = kernel.norm_relu(ours.norm, ours.x, ours.skip, step=step, relu=relu)
    expected, expected_thin = reference.by_hand()
    assert_near(out, expected, 1e-6)
    assert_near(thin, expected_thin, 1e-6)
    for found, wanted in zip(ours.gradients(out, thin), reference.gradients(expected, expected_thin), strict=True):
        assert_near(found, wanted, 2e-5)
    for name in ("running_mean", "running_var"):
        assert_near(getattr(ours.norm, name), getattr(reference.norm, name), 1e-6)


def test_a_mean_far_from_zero_does_not_swallow_the_variance() -> None:
    ours = make((4, 32, 6, 6), skip=False, relu=False, step=1, centre=3000.0)
    reference = ours.doubled()
    out, _ = kernel.norm_relu(ours.norm, ours.x, None, step=1, relu=False)
    assert_near(out, reference.by_hand()[0], 1e-3)


def test_only_the_shortcut_uses_the_result() -> None:
    ours = make((2, 32, 4, 4), skip=True, relu=True, step=2)
    reference = ours.doubled()
    (found,) = torch.autograd.grad(kernel.norm_relu(ours.norm, ours.x, ours.skip, step=2, relu=True).thin.sum(), ours.x)
    (wanted,) = torch.autograd.grad(reference.by_hand()[1].sum(), reference.x)
    assert_near(found, wanted, 2e-5)


@pytest.mark.parametrize("layout", ["rows", "expanded"])
def test_memory_layouts_that_autograd_brings(layout: str) -> None:
    ours = make((3, 32, 4, 4), skip=False, relu=True, step=1)
    reference = ours.doubled()
    out = kernel.norm_relu(ours.norm, ours.x.contiguous() if layout == "rows" else ours.x, None, step=1, relu=True)
    (found,) = torch.autograd.grad(out.whole.mean(dim=(2, 3)).square().sum(), ours.x)
    (wanted,) = torch.autograd.grad(reference.by_hand()[0].mean(dim=(2, 3)).square().sum(), reference.x)
    assert_near(found, wanted, 2e-5)


def test_the_same_step_twice_has_the_same_bytes() -> None:
    case = make((4, 64, 8, 8), skip=True, relu=True, step=2)
    again = copy.deepcopy(case.norm)
    first = kernel.norm_relu(case.norm, case.x, case.skip, step=2, relu=True)
    second = kernel.norm_relu(again, case.x, case.skip, step=2, relu=True)
    assert torch.equal(first.whole, second.whole)
    gradients = (case.gradients(*first), Case(case.x, case.skip, again, 2, True).gradients(*second))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("backbone", [SmallCNN(3, width=16), ResNet(3), ResNet(3, name="resnet20", signed=True)])
def test_a_whole_backbone_trains_alike(backbone: SmallCNN | ResNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    initialise(backbone, 3)
    plain = copy.deepcopy(backbone).double().to(DEVICE).train()
    ours = backbone.to(DEVICE).train()
    for module in ours.modules():
        if isinstance(module, BatchNorm):
            module.kernel = kernel.norm_relu
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(6, 3, 8, 8, generator=rng).to(DEVICE).contiguous(memory_format=torch.channels_last)
    towards = torch.randn(6, ours.feature_dim, generator=rng).to(DEVICE)
    found = torch.autograd.grad((ours(images) * towards).sum(), list(ours.parameters()))
    wanted = torch.autograd.grad((plain(images.double()) * towards).sum(), list(plain.parameters()))
    for gradient, expected in zip(found, wanted, strict=True):
        assert_near(gradient, expected, 1e-3)
    for ours_running, theirs in zip(ours.buffers(), plain.buffers(), strict=True):
        if theirs.is_floating_point():
            assert torch.allclose(ours_running.double(), theirs, atol=1e-5)


@pytest.mark.parametrize(("skip", "relu", "step"), [(False, False, 1), (True, True, 1), (True, True, 2)])
def test_evaluation_uses_the_running_statistics(skip: bool, relu: bool, step: int) -> None:
    case = make((3, 24, 5, 4), skip=skip, relu=relu, step=step)
    case.norm.eval().running_var = torch.rand(24, device=DEVICE) + 0.5
    before = [b.clone() for b in case.norm.buffers()]
    with torch.no_grad():
        out, thin = kernel.norm_relu(case.norm, case.x, case.skip, step=step, relu=relu)
    n, x, y = case.norm.double(), case.x.double(), None if case.skip is None else case.skip.double()
    expected = F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, False, 0.0, n.eps)
    expected = expected if y is None else expected + y
    expected = F.relu(expected) if relu else expected
    assert_near(out, expected, 1e-6)
    assert_near(thin, expected[:, :, ::step, ::step], 1e-6)
    assert all(torch.equal(a.double(), b.double()) for a, b in zip(before, case.norm.buffers(), strict=True))


def test_a_gradient_in_evaluation_mode_is_pytorchs() -> None:
    norm = BatchNorm(8, device=DEVICE).eval()
    norm.kernel = kernel.norm_relu
    x = torch.randn(2, 8, 3, 3, device=DEVICE, requires_grad=True)
    found = activated(norm, x).whole
    assert torch.equal(found, F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)))
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.allclose(gradient, (x > 0) / (1 + norm.eps) ** 0.5)


@torch.no_grad()
def test_a_whole_backbone_evaluates_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    backbone = ResNet(3).to(DEVICE).eval()
    initialise(backbone, 3)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    expected = copy.deepcopy(backbone).double()(images.double())
    for module in backbone.modules():
        if isinstance(module, BatchNorm):
            module.kernel = kernel.norm_relu
    assert_near(backbone(images.contiguous(memory_format=torch.channels_last)), expected, 1e-3)
