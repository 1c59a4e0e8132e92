import pytest
import torch
from networks import network_for
from torch import nn

from fedfeat.core.errors import ConfigError
from fedfeat.methods.data_free.losses import BatchNormProbe, batch_norms


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
