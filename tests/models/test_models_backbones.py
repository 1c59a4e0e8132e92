from functools import partial

import pytest
import torch

from fedfeat.algorithm.method import linear_head
from fedfeat.models import ETFHead, ModelSettings, build_network
from fedfeat.models.backbones import ResNet, SmallCNN, for_both
from fedfeat.models.network import initialise


def numbers(tensors) -> int:
    return sum(t.numel() for t in tensors)


@pytest.fixture(scope="module")
def resnet():
    return ResNet()


def running_values(network) -> int:
    return numbers(b for b in network.buffers() if b.is_floating_point())


def test_resnet_with_the_cifar_stem_has_the_published_size(resnet):
    assert numbers(resnet.parameters()) == 11_168_832
    assert running_values(resnet) == 9_600


def test_resnet_with_the_wide_stem_has_the_published_size():
    wide = ResNet(wide_stem=True)
    assert numbers(wide.parameters()) == 11_176_512
    assert running_values(wide) == 9_600


@pytest.mark.parametrize(("wide", "side", "last_map"), [(False, 32, 4), (True, 64, 2)])
def test_resnet_ends_in_512_non_negative_features_over_the_published_map(wide, side, last_map, resnet):
    network = ResNet(wide_stem=True).eval() if wide else resnet.eval()
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = network.stages(for_both(network.shrink(network.stem(x).relu()), 1)).whole
        features = network(x)
    assert maps.shape == (2, 512, last_map, last_map)
    assert torch.allclose(features, maps.mean(dim=(2, 3)), atol=1e-5)
    assert features.min() >= 0


@pytest.mark.parametrize(("channels", "width"), [(1, 32), (3, 8)])
def test_small_cnn_has_twice_its_width_in_features(channels, width):
    network = SmallCNN(channels, width=width).eval()
    assert network.feature_dim == 2 * width
    assert network(torch.zeros(2, channels, 8, 8)).shape == (2, 2 * width)


@pytest.mark.parametrize(
    ("settings", "shape", "kind", "first_kernel"),
    [
        ({}, (8, 8, 1), SmallCNN, 3),
        ({}, (32, 32, 3), ResNet, 3),
        ({}, (64, 64, 3), ResNet, 7),
        ({"stem": "3x3"}, (64, 64, 3), ResNet, 3),
        ({"stem": "7x7"}, (32, 32, 3), ResNet, 7),
        ({"name": "small-cnn"}, (32, 32, 3), SmallCNN, 3),
    ],
)
def test_the_image_size_chooses_backbone_and_stem(settings, shape, kind, first_kernel):
    network = build_network(ModelSettings(**settings), shape, linear_head, seed=0, num_classes=10)
    assert isinstance(network.backbone, kind)
    first = next(m for m in network.modules() if isinstance(m, torch.nn.Conv2d))
    assert first.kernel_size == (first_kernel, first_kernel)
    assert first.in_channels == shape[2]


HEADS = {
    "etf": lambda dim, seed, classes: ETFHead(dim, seed=seed),
    "etf-linear": lambda dim, seed, classes: ETFHead(dim, seed=seed, feature_layer="linear"),
    "etf-mlp": lambda dim, seed, classes: ETFHead(dim, seed=seed, feature_layer="mlp"),
}


def small(head, seed=0):
    return build_network(ModelSettings(width=8), (8, 8, 1), head, seed=seed, num_classes=10)


@pytest.mark.parametrize("head", HEADS)
def test_backbones_start_alike_whatever_the_head(head):
    torch.manual_seed(1)
    one = small(linear_head).backbone.state_dict()
    torch.manual_seed(2)
    two = small(HEADS[head]).backbone.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("head", HEADS)
def test_every_initial_weight_comes_from_the_seed(head):
    torch.manual_seed(1)
    one = small(HEADS[head]).state_dict()
    torch.manual_seed(2)
    two = small(HEADS[head]).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = small(HEADS[head], seed=1).state_dict()
    assert not torch.equal(one["backbone.layers.0.0.weight"], other["backbone.layers.0.0.weight"])


def test_building_a_network_leaves_the_callers_random_draws_alone():
    network = small(linear_head)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialise(network, seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_convolutions_start_kaiming_normal_by_fan_out_and_norms_at_identity():
    network = build_network(ModelSettings(), (32, 32, 3), linear_head, seed=0, num_classes=10)
    conv = network.backbone.stages[3][1].conv2.weight.detach()
    assert float(conv.std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all((n.weight == 1).all() and (n.bias == 0).all() for n in norms)
    assert all(n.momentum == 0.1 and n.affine for n in norms)


def test_convolutions_may_start_as_pytorch_draws_them():
    """Uniform with a variance of a third of the inverse fan in: a sixth of Kaiming's, where both fans are alike."""
    for shape in ((32, 32, 3), (8, 8, 1)):
        usual = build_network(ModelSettings(), shape, linear_head, seed=0, num_classes=10)
        other = build_network(ModelSettings(init="pytorch"), shape, linear_head, seed=0, num_classes=10)
        again = build_network(ModelSettings(init="pytorch"), shape, linear_head, seed=0, num_classes=10)
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), again.parameters(), strict=True))
        convs = [
            (a, b) for a, b in zip(usual.modules(), other.modules(), strict=True) if isinstance(a, torch.nn.Conv2d)
        ]
        for one, two in convs:
            assert not torch.equal(one.weight, two.weight)
            bound = two.weight[0].numel() ** -0.5
            assert 0.9 * bound < float(two.weight.detach().abs().max()) <= bound


@pytest.mark.parametrize("features", ["relu", "signed"])
@pytest.mark.parametrize(("shape", "widths"), [((8, 8, 1), [8, 8, 16]), ((32, 32, 3), [64, 64, 128, 256, 512])])
def test_intermediate_features_are_pooled_stages_before_their_activation(shape, widths, features):
    settings = ModelSettings(width=8, features=features)
    network = build_network(settings, shape, linear_head, seed=0, num_classes=10).eval()
    network.head.grow(3, 0)
    x = torch.randn(2, shape[2], *shape[:2], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs, intermediate = network.with_intermediate(x)
        plain = network(x)
    assert torch.allclose(outputs.features, plain.features, atol=1e-6)
    assert torch.allclose(outputs.logits, plain.logits, atol=1e-6)
    assert [pooled.shape for pooled in intermediate] == [(2, width) for width in widths]
    assert all(pooled.min() < 0 for pooled in intermediate)


@pytest.mark.parametrize("backbone", [SmallCNN, ResNet, partial(ResNet, name="resnet50")])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_signed_features_are_those_before_the_last_activation(backbone, norm):
    usual, signed = backbone(3, norm=norm).eval(), backbone(3, norm=norm, signed=True).eval()
    signed.load_state_dict(usual.state_dict())
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(signed.maps(x).relu(), usual.maps(x))
        assert signed(x).min() < 0 <= usual(x).min()


def test_group_norm_keeps_no_running_statistics():
    network = build_network(ModelSettings(norm="group", width=8), (8, 8, 1), linear_head, seed=0, num_classes=10)
    assert running_values(network) == 0
    assert network(torch.zeros(1, 1, 8, 8)).features.shape == (1, 16)


@pytest.mark.parametrize(
    ("name", "wide", "size", "features"),
    [
        ("resnet34", True, 21_284_672, 512),  # with ImageNet's stem, as published, less the classifier
        ("resnet50", True, 23_508_032, 2048),
        ("resnet20", False, 269_072 + 2_752, 64),  # as published, and 1x1 convolutions in the two shortcuts that widen
        ("resnet32", False, 463_504 + 2_752, 64),
    ],
)
def test_other_resnets_have_the_published_sizes(name, wide, size, features):
    backbone = ResNet(name=name, wide_stem=wide).eval()
    assert numbers(backbone.parameters()) == size
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        pooled, intermediate = backbone.with_intermediate(x)
        torch.testing.assert_close(backbone(x), pooled)
    assert pooled.shape == (2, features)
    assert len(intermediate) == 1 + len(backbone.stages)


@pytest.mark.parametrize("pixels", [8, 9, 33, 64])
def test_the_size_of_the_last_feature_map_is_known_without_an_image(pixels):
    small = ResNet(1, name="resnet20"), ResNet(1, name="resnet20", wide_stem=True), SmallCNN(1, width=4)
    for backbone in (ResNet(1), ResNet(1, wide_stem=True), *small):
        maps = backbone.eval().maps(torch.zeros(1, 1, pixels, pixels))
        assert maps.shape[2:] == (backbone.map_size(pixels),) * 2
