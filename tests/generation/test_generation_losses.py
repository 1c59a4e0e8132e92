import math

import pytest
import torch

from fedfeat.methods.data_free.losses import adversarial_loss, bounding_loss, softened_divergence

HALF = torch.zeros(1, 2)
THREE_QUARTERS = torch.tensor([[math.log(3.0), 0.0]])
KL = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)


def test_the_adversarial_loss_is_minus_the_divergence_where_both_agree():
    student = torch.cat([HALF + torch.tensor([[1e-6, 0.0]]), HALF - torch.tensor([[1.0, 0.0]])])
    teacher = torch.cat([THREE_QUARTERS, THREE_QUARTERS])
    # The second image is left out, but the mean is over both.
    assert float(adversarial_loss(student, teacher)) == pytest.approx(-KL / 2, abs=1e-5)


def test_the_adversarial_loss_is_zero_without_agreement_or_without_a_difference():
    assert float(adversarial_loss(-THREE_QUARTERS, THREE_QUARTERS)) == 0
    assert float(adversarial_loss(THREE_QUARTERS, THREE_QUARTERS)) == 0


def test_softened_divergence_has_the_factor_t_squared():
    assert float(softened_divergence(HALF, THREE_QUARTERS, 1.0)) == pytest.approx(KL)
    assert float(softened_divergence(HALF, 2 * THREE_QUARTERS, 2.0)) == pytest.approx(4 * KL)
    assert float(softened_divergence(THREE_QUARTERS, THREE_QUARTERS, 20.0)) == 0


def test_the_divergence_stays_finite_for_extreme_logits():
    far = torch.tensor([[200.0, -200.0]])
    assert torch.isfinite(softened_divergence(far, -far, 1.0))
    assert torch.isfinite(adversarial_loss(far, 2 * far))


def test_the_bound_costs_nothing_inside_the_ball_and_has_no_gradient_there():
    mapped = torch.tensor([[0.1, 0.0], [0.0, 0.1]], requires_grad=True)  # MSE 0.005
    loss = bounding_loss(mapped, torch.zeros(2, 2), 0.015)
    loss.backward()
    assert float(loss.detach()) == 0
    assert (mapped.grad == 0).all()


def test_one_far_sample_opens_the_hinge_for_the_whole_batch():
    mapped = torch.tensor([[0.1, 0.0], [1.0, 0.0]], requires_grad=True)
    loss = bounding_loss(mapped, torch.zeros(2, 2), 0.015)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1.01 / 4 - 0.015)
    assert float(mapped.grad[0, 0]) == pytest.approx(2 * 0.1 / 4)
