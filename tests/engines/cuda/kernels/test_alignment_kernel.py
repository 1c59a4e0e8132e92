"""GSA in our kernels beside the pure function it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from fedfeat.engines.cuda.kernels import alignment
from fedfeat.geometry import gsa_loss

pytestmark = pytest.mark.interpreter
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batch(size: int, width: int = 24, classes: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(size)
    features = 3 * torch.randn(size, width, generator=rng)
    return features.to(DEVICE).requires_grad_(), torch.randint(0, classes, (size,), generator=rng).to(DEVICE)


@pytest.mark.parametrize("kl", ["FP", "PF", "sym"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("class_balanced", [True, False])
@pytest.mark.parametrize("size", [1, 2, 13])
def test_loss_and_gradient_are_those_of_the_pure_function(
    size: int, kl: Any, include_self: bool, class_balanced: bool
) -> None:
    features, labels = batch(size)
    exact = features.detach().double().requires_grad_()
    options: dict[str, Any] = {
        "kl": kl,
        "include_self": include_self,
        "class_balanced": class_balanced,
        "temperature": 0.3,
    }
    ours, theirs = alignment.gsa_loss(features, labels, 5, **options), gsa_loss(exact, labels, 5, **options)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-6)
    (found,), (wanted,) = torch.autograd.grad(2.5 * ours, features), torch.autograd.grad(2.5 * theirs, exact)
    assert torch.allclose(found.double(), wanted, rtol=1e-3, atol=1e-5)


def test_at_the_published_temperature_and_the_size_of_a_whole_block() -> None:
    features, labels = batch(32, width=40)
    exact = features.detach().double().requires_grad_()
    ours, theirs = alignment.gsa_loss(features, labels, 7), gsa_loss(exact, labels, 7)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)
    (found,), (wanted,) = torch.autograd.grad(ours, features), torch.autograd.grad(theirs, exact)
    assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-4


def test_a_feature_of_no_length_has_a_finite_gradient() -> None:
    features, labels = batch(6)
    with torch.no_grad():
        features[2] = 0
    (found,) = torch.autograd.grad(alignment.gsa_loss(features, labels, 5), features)
    assert torch.isfinite(found).all()
