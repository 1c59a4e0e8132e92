import math

import pytest
import torch

from fedfeat.core.errors import ConfigError
from fedfeat.geometry import simplex_etf
from fedfeat.models import ETFHead, LinearHead

DIM = 32


def etf(num_classes=4, task=0, **settings):
    head = ETFHead(DIM, seed=3, **settings)
    head.grow(num_classes, task)
    return head


def features(count=6, dim=DIM):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0))


def own_cosines(before, after):
    """Cosine of each old prototype with itself after growth."""
    return (before * after[:, : before.shape[1]]).sum(dim=0)


def test_a_linear_head_keeps_old_rows_when_it_grows():
    head = LinearHead(DIM, seed=1)
    head.grow(3, task=0)
    with torch.no_grad():
        head.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.grow(5, task=1)
    assert head.num_classes == head.num_prototypes == 5
    assert torch.equal(head.weight[:3], weight)
    assert torch.equal(head.bias[:3], bias)
    assert torch.equal(head.bias[3:], torch.zeros(2))


def test_new_linear_rows_are_kaiming_uniform_and_differ_between_tasks():
    head = LinearHead(64, seed=1)
    head.grow(200, task=0)
    head.grow(400, task=1)
    bound = math.sqrt(3 / 64)
    assert head.weight.abs().max() <= bound
    assert float(head.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert not torch.equal(head.weight[:200], head.weight[200:])


def test_linear_rows_come_from_the_seed_and_the_task_alone():
    def rows(seed):
        torch.manual_seed(seed * 7)
        head = LinearHead(DIM, seed=seed)
        head.grow(3, task=0)
        head.grow(5, task=1)
        return head.weight.detach()

    assert torch.equal(rows(1), rows(1))
    assert not torch.equal(rows(1), rows(2))


def test_a_linear_head_is_trained_row_by_row_with_a_bias():
    head = LinearHead(DIM, seed=1)
    head.grow(3, task=0)
    x = features()
    assert torch.allclose(head(x), x @ head.weight.T + head.bias)
    assert {n for n, _ in head.named_parameters()} == {"weight", "bias"}
    assert head.feature(x) is x


def test_nested_growth_turns_old_prototypes_by_the_smallest_angle():
    head = etf(2)
    before = head.prototypes
    head.grow(4, task=1)
    assert torch.allclose(own_cosines(before, head.prototypes), torch.tensor(0.81650), atol=1e-5)
    assert head.num_classes == head.num_prototypes == 4


def test_redrawn_prototypes_are_unrelated_to_the_old_ones():
    head = ETFHead(512, seed=3, growth="redraw")
    head.grow(20, task=0)
    before = head.prototypes
    head.grow(40, task=1)
    assert own_cosines(before, head.prototypes).abs().mean() < 0.06
    again = ETFHead(512, seed=3, growth="redraw")
    again.grow(40, task=1)
    assert torch.equal(again.prototypes, head.prototypes)


def test_preallocated_prototypes_never_move_and_are_the_first_of_the_whole_frame():
    head = etf(2, growth="preallocated", max_classes=10)
    before = head.prototypes
    head.grow(6, task=1)
    assert torch.equal(before, head.prototypes[:, :2])
    assert torch.equal(head.prototypes, simplex_etf(10, DIM, seed=3)[:, :6])
    assert (head.num_classes, head.num_prototypes) == (6, 10)


def test_a_preallocated_frame_that_is_too_small_is_refused():
    head = ETFHead(DIM, seed=3, growth="preallocated", max_classes=4)
    head.grow(4, task=0)
    with pytest.raises(ConfigError):
        head.grow(6, task=1)


@pytest.mark.parametrize("growth", ["nested", "redraw", "preallocated"])
@pytest.mark.parametrize("basis", ["haar", "axis"])
def test_server_and_clients_get_the_same_bits_from_a_seed(growth, basis):
    one, two = (etf(6, 1, growth=growth, basis=basis, max_classes=10) for _ in range(2))
    assert torch.equal(one.prototypes, two.prototypes)


@pytest.mark.parametrize("growth", ["nested", "redraw"])
def test_a_head_that_skipped_tasks_has_the_frame_of_one_that_did_not(growth):
    steady = etf(2, 0, growth=growth)
    steady.grow(4, 1)
    steady.grow(6, 2)
    assert torch.equal(steady.prototypes, etf(6, 2, growth=growth).prototypes)


def test_raw_logits_use_the_length_of_features_and_cosine_logits_do_not():
    raw, cosine = etf(logits="raw"), etf(logits="cosine", scale=16.0)
    x = features()
    assert torch.allclose(raw(x), x @ raw.prototypes)
    assert torch.allclose(raw(2 * x), 2 * raw(x))
    assert torch.allclose(cosine(2 * x), cosine(x), atol=1e-5)
    expected = 16 * torch.nn.functional.cosine_similarity(x[:, :, None], cosine.prototypes[None], dim=1)
    assert torch.allclose(cosine(x), expected, atol=1e-5)
    assert torch.equal(raw(x).argmax(dim=1), cosine(x).argmax(dim=1))


def test_cosines_do_not_depend_on_the_kind_of_logits():
    x = features()
    raw = etf(logits="raw").cosine(x)
    assert torch.equal(raw, etf(logits="cosine", scale=3.0).cosine(x))
    assert raw.abs().max() <= 1


def test_a_learnable_scale_starts_at_sixteen_and_is_trained():
    head = etf(logits="cosine", scale="learnable")
    x = features()
    assert torch.allclose(head(x), 16 * head.cosine(x))
    head(x)[:, 0].sum().backward()
    assert float(head.scale.grad) == pytest.approx(float(head.cosine(x)[:, 0].sum()), rel=1e-5)


@pytest.mark.parametrize(("logits", "scale"), [("raw", "learnable"), ("raw", 16.0), ("cosine", 8.0)])
def test_nothing_else_of_the_head_is_trained(logits, scale):
    assert list(etf(logits=logits, scale=scale).parameters()) == []


def test_a_given_scale_multiplies_cosines():
    head = etf(logits="cosine", scale=8.0)
    assert torch.allclose(head(features()), 8 * head.cosine(features()))


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        ("none", {}),
        ("linear", {"layer.weight": (DIM, DIM)}),
        ("mlp", {"layer.0.weight": (DIM, DIM), "layer.0.bias": (DIM,), "layer.2.weight": (DIM, DIM)}),
    ],
)
def test_feature_layers_have_their_parameters_and_no_last_activation(layer, shapes):
    head = etf(feature_layer=layer)
    assert {n: tuple(p.shape) for n, p in head.named_parameters()} == shapes
    pooled = features(200).relu()
    out = head.feature(pooled)
    assert out.shape == pooled.shape
    assert (out.min() < 0) == (layer != "none")


def test_prototypes_are_never_saved_and_get_no_gradient():
    head = etf(feature_layer="linear")
    assert "prototypes" not in head.state_dict()
    assert not head.prototypes.requires_grad


def test_a_dead_feature_has_zero_cosines():
    assert torch.equal(etf().cosine(torch.zeros(1, DIM)), torch.zeros(1, 4))


@pytest.mark.parametrize(("growth", "num_classes", "max_classes"), [("nested", 33, None), ("preallocated", 2, 33)])
def test_more_classes_than_dimensions_are_refused_in_one_sentence(growth, num_classes, max_classes):
    head = ETFHead(DIM, seed=0, growth=growth, max_classes=max_classes)
    with pytest.raises(ConfigError) as caught:
        head.grow(num_classes)
    message = str(caught.value)
    assert "\n" not in message
    assert "33" in message
    assert str(DIM) in message


@pytest.mark.parametrize("growth", ["nested", "redraw"])
@pytest.mark.parametrize("size", [1, 2, DIM])
def test_frames_of_every_admissible_size_have_unit_columns(growth, size):
    norms = etf(size, growth=growth).prototypes.norm(dim=0)
    assert torch.allclose(norms, torch.ones(size), atol=1e-6)
