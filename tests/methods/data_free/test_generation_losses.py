import math

import pytest
import torch
from networks import network_for
from torch import nn

from fedfeat.core.errors import ConfigError
from fedfeat.methods.data_free.losses import (
    BatchNormProbe,
    adversarial_loss,
    batch_norms,
    bounding_loss,
    softened_divergence,
)

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


def layer_with(mean, variance):
    layer = nn.BatchNorm2d(len(mean)).eval()
    layer.running_mean.copy_(torch.tensor(mean))
    layer.running_var.copy_(torch.tensor(variance))
    return nn.Sequential(layer)


def images(*means):
    """Two pixels per channel, one below and one above the mean: variance 1."""
    return torch.tensor(means).view(1, -1, 1, 1) + torch.tensor([-1.0, 1.0]).view(1, 1, 1, 2)


def test_distance_of_both_moments_by_hand():
    network = layer_with([3.0, 4.0], [1.0, 3.0])
    probe = BatchNormProbe(network)
    with probe.watching():
        network(images(0.0, 0.0))
    assert float(probe.loss()) == pytest.approx(5.0 + 2.0)


def test_later_rounds_are_blended_with_what_is_remembered():
    network = layer_with([0.0], [1.0])
    probe = BatchNormProbe(network)
    for mean in (10.0, 20.0, 30.0):
        with probe.watching():
            network(images(mean))
            losses = float(probe.loss())
        probe.remember()
        if mean == 10.0:
            assert losses == pytest.approx(10.0)
            assert float(probe.stored[0][0]) == 10.0
        if mean == 20.0:
            assert losses == pytest.approx(0.1 * 20 + 0.9 * 10)
            assert float(probe.stored[0][0]) == pytest.approx(0.9 * 10 + 0.1 * 20)
    assert losses == pytest.approx(0.1 * 30 + 0.9 * 11)
    assert float(probe.stored[0][1]) == pytest.approx(1.0)


def test_moments_of_reduced_precision_are_not_rounded_to_it():
    network = layer_with([0.0], [1.0])
    probe = BatchNormProbe(network)
    activations = torch.linspace(0.9, 1.2, 1000).view(10, 1, 10, 10).bfloat16()
    with probe.watching():
        network(activations)
    mean, variance = probe.current[0]
    assert mean.item() == pytest.approx(activations.double().mean().item(), rel=1e-5)
    assert variance.item() == pytest.approx(activations.double().var(correction=0).item(), rel=1e-4)
    for _ in range(40):  # a tenth of the way to other moments in every round
        with probe.watching():
            network(activations + 0.02)
        probe.remember()
    target = (activations + 0.02).double().mean().item()
    assert probe.stored[0][0].item() == pytest.approx(target, rel=1e-5)


def test_only_the_newest_forward_pass_counts_and_nothing_outside_the_block():
    network = layer_with([0.0], [1.0])
    probe = BatchNormProbe(network)
    with probe.watching():
        network(images(5.0))
        network(images(2.0))
    network(images(9.0))
    assert float(probe.loss()) == pytest.approx(2.0)


def test_hooks_are_gone_even_after_an_error():
    network = network_for()
    probe = BatchNormProbe(network)
    with pytest.raises(RuntimeError), probe.watching():
        raise RuntimeError
    assert all(not m._forward_pre_hooks for m in network.modules())


def test_gradients_reach_the_images_of_every_layer():
    network = network_for().eval().requires_grad_(False)
    probe = BatchNormProbe(network)
    x = torch.rand(4, 1, 8, 8, requires_grad=True)
    with probe.watching():
        network(x)
    assert len(probe.current) == 3
    probe.loss().backward()
    assert float(x.grad.abs().sum()) > 0


def test_a_network_without_batch_norm_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match=r"model\.norm.*set model\.norm to 'batch'"):
        batch_norms(network_for(norm="group"))
