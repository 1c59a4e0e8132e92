import numpy as np
import pytest
import torch
from torch import nn

from fedfeat.methods.data_free.generator import AnchorGenerator, ImageGenerator, NoisyLinears


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("size", "target", "lander"), [(32, 2_328_899, 5_744_451), (64, 8_644_931, 12_060_483)])
def test_the_published_sizes(size, target, lander):
    assert count(ImageGenerator(256, (size, size, 3))) == target
    assert count(AnchorGenerator(512, 256, 256, (size, size, 3))) == lander
    assert count(nn.Linear(512, 512)) == 262_656  # the mapping layer that goes with it


@pytest.mark.parametrize("shape", [(8, 8, 1), (10, 14, 3), (5, 7, 1), (1, 1, 3), (32, 32, 3)])
def test_images_of_any_size_with_one_or_three_channels(shape):
    images = ImageGenerator(6, shape)(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    height, width, channels = shape
    assert images.shape == (4, channels, height, width)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0


def test_a_noisy_layer_serves_ten_consecutive_samples():
    layers = NoisyLinears(3, 2, batch=23)
    layers.redraw(np.random.default_rng(0))
    with torch.no_grad():
        layers.bias.copy_(torch.arange(6.0).view(3, 1, 2))
    x = torch.randn(23, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.cat([x[i : i + 10] @ layers.weight[i // 10] + layers.bias[i // 10] for i in (0, 10, 20)])
    assert len(layers.weight) == 3
    assert torch.allclose(layers(x), expected, atol=1e-6)
    assert torch.allclose(layers(x[:7]), expected[:7], atol=1e-6)


def test_redrawing_takes_standard_normal_weights_from_the_address_and_forgets_biases():
    first, second = NoisyLinears(64, 32, batch=20), NoisyLinears(64, 32, batch=20)
    with torch.no_grad():
        second.bias.fill_(3.0)
    first.redraw(np.random.default_rng(4))
    second.redraw(np.random.default_rng(4))
    assert torch.equal(first.weight, second.weight)
    assert not second.bias.any()
    assert first.weight.mean().item() == pytest.approx(0, abs=0.05)
    assert first.weight.std().item() == pytest.approx(1, abs=0.05)
    second.redraw(np.random.default_rng(5))
    assert not torch.equal(first.weight, second.weight)


def test_noise_comes_from_the_layers_alone():
    generator = AnchorGenerator(4, 8, 20, (8, 8, 1))
    generator.noise.redraw(np.random.default_rng(0))
    anchors = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]).repeat(10, 1)
    images = generator(anchors)
    assert torch.allclose(images[0], images[2], atol=1e-5)  # one class, one layer
    assert not torch.allclose(images[0], images[10], atol=1e-3)  # one class, two layers
    assert not torch.allclose(images[0], images[1], atol=1e-3)  # two classes, one layer


@pytest.mark.parametrize("classes", [1, 2, 4, 10, 20])
def test_no_layer_makes_a_class_twice(classes):
    layers = AnchorGenerator(4, 8, 40, (8, 8, 1), classes).noise
    of_sample = torch.arange(len(layers.weight)).repeat_interleave(layers.share)[:40]
    made = list(zip(of_sample.tolist(), (torch.arange(40) % classes).tolist(), strict=True))
    assert len(set(made)) == 40
    assert layers.share == min(classes, 10)
