"""The mathematics of CLIP2FL against values worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedfeat.methods.clip2fl import siamese
from fedfeat.methods.clip2fl.clip2fl import distillation
from fedfeat.methods.clip2fl.federated_features import (
    ClassGradients,
    FeatureSettings,
    LinearMap,
    class_gradients,
    fresh_linear,
    grouped_gradients,
    grown_classifier,
    grown_features,
    match,
    matching_loss,
    mean_gradients,
    prototype_term,
    retrain,
    row_distance,
)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classifier(classes=3, dim=5, seed=9):
    return LinearMap(draws(classes, dim, seed=seed), draws(classes, seed=seed + 1))


# Distillation.


def test_distillation_by_hand():
    logits, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[3 * math.log(3.0), 0.0]])
    expected = 9 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    assert float(distillation(logits, teacher, 3.0)) == pytest.approx(expected, rel=1e-5)


def test_distillation_is_averaged_over_the_batch_and_zero_for_shifted_logits():
    logits = draws(4, 3)
    assert abs(float(distillation(logits + 7, logits, 3.0))) < 1e-12
    other = draws(4, 3, seed=1)
    one_by_one = [distillation(logits[i : i + 1], other[i : i + 1], 3.0) for i in range(4)]
    torch.testing.assert_close(distillation(logits, other, 3.0), torch.stack(one_by_one).mean())


def test_distillation_survives_a_sure_teacher():
    logits = torch.zeros(1, 2, requires_grad=True)
    distillation(logits, torch.tensor([[1000.0, -1000.0]]), 3.0).backward()
    assert torch.isfinite(logits.grad).all()


# Gradients of classes.


def test_closed_form_gradients_are_those_of_autograd():
    features, labels = draws(9, 5), torch.tensor([0, 2, 2, 0, 2, 2, 2, 0, 0])
    linear = LinearMap(*(t.requires_grad_() for t in classifier()))
    classes = torch.tensor([0, 2])
    made = class_gradients(features, labels, classes, linear)
    for row, c in enumerate(classes):
        rows = features[labels == c]
        loss = F.cross_entropy(linear(rows), torch.full((len(rows),), int(c)))
        weight, bias = torch.autograd.grad(loss, list(linear))
        torch.testing.assert_close(made.weight[row], weight, atol=1e-12, rtol=0)
        torch.testing.assert_close(made.bias[row], bias, atol=1e-12, rtol=0)
    single = class_gradients(features.float(), labels, classes, LinearMap(*(t.detach().float() for t in linear)))
    torch.testing.assert_close(single.weight, made.weight.detach().float(), atol=1e-6, rtol=0)


def test_gradients_are_averaged_over_the_clients_that_own_the_class():
    def sent(ids, value):
        count = len(ids)
        return torch.tensor(ids).int(), ClassGradients(torch.full((count, 2, 3), value), torch.full((count, 2), value))

    classes, mean = mean_gradients([sent([0, 4], 1.0), sent([4], 3.0), sent([2], 5.0)])
    assert classes.tolist() == [0, 2, 4]
    assert mean.bias[:, 0].tolist() == [1.0, 5.0, 2.0]
    assert mean.weight[:, 1, 2].tolist() == [1.0, 5.0, 2.0]


# Federated features.


def test_matching_loss_is_zero_when_features_reproduce_the_gradient():
    linear, features, classes = classifier(), draws(3, 4, 5), torch.arange(3)
    target = grouped_gradients(features, classes, linear)
    assert float(matching_loss(features, classes, target, linear)) < 1e-3  # the guard in the denominator
    # Twice the gradient has the same directions.
    double = ClassGradients(2 * target.weight, 2 * target.bias)
    assert float(matching_loss(features, classes, double, linear)) < 1e-3
    opposite = ClassGradients(-target.weight, -target.bias)
    rows = 3 * (3 + 1)  # per class a row per output, and the bias
    assert float(matching_loss(features, classes, opposite, linear)) == pytest.approx(2 * rows, abs=1e-3)


def test_row_distance_by_hand_and_for_zero_rows():
    ours = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], requires_grad=True)
    theirs = torch.tensor([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0]])
    value = row_distance(ours, theirs)
    assert value.item() == pytest.approx(1 + 0 + 1, abs=1e-5)
    value.backward()
    assert torch.isfinite(ours.grad).all()


def test_the_prototype_term_is_cross_entropy_over_text_features():
    features, text = draws(3, 2, 5), F.normalize(draws(3, 5, seed=1))
    rows = [F.cross_entropy(v @ text.T / 0.1, torch.tensor(c)) for c in range(3) for v in features[c]]
    torch.testing.assert_close(prototype_term(features, text, 0.1), torch.stack(rows).mean())


def test_the_released_form_of_the_prototype_term_is_a_constant_away():
    """Each text vector 100 times with one of them masked, as in the released code: log(100) up to the mask."""
    features, text = 0.1 * draws(4, 100, 5), F.normalize(draws(4, 5, seed=1))
    flat, labels = features.flatten(0, 1), torch.arange(4).repeat_interleave(100)
    repeated = (flat @ text.T / 0.1).repeat_interleave(100, dim=1)
    own = torch.eye(400, dtype=torch.bool)
    denominator = repeated.masked_fill(own, -torch.inf).logsumexp(dim=1)
    released = (denominator - (flat @ text.T / 0.1)[torch.arange(400), labels]).mean()
    gap = float(released - prototype_term(features, text, 0.1))
    assert gap == pytest.approx(math.log(100), abs=0.01)
    assert gap < math.log(100)


def settings(**changes):
    return FeatureSettings(**{"features_per_class": 4, "match_epochs": 60, **changes})


def test_matching_brings_the_gradients_together():
    linear, classes = LinearMap(*(t.float() for t in classifier())), torch.arange(3)
    target = grouped_gradients(3 * draws(3, 8, 5, seed=4).float(), classes, linear)
    start = draws(3, 4, 5, seed=5).float()
    text = F.normalize(draws(3, 5, seed=6)).float()
    before = matching_loss(start, classes, target, linear)
    moved, bridge, reported = match(start, classes, target, linear, text, None, settings())
    assert bridge is None
    assert matching_loss(moved, classes, target, linear) < 0.5 * before
    assert reported < before
    assert not moved.requires_grad


def test_a_class_without_a_gradient_feels_the_text_alone():
    linear, classes = LinearMap(*(t.float() for t in classifier())), torch.tensor([0, 2])
    target = grouped_gradients(draws(2, 8, 5, seed=4).float(), classes, linear)
    start, text = draws(3, 4, 5, seed=5).float(), F.normalize(draws(3, 5, seed=6)).float()
    alone = match(start, classes, target, linear, text, None, settings(match_epochs=1, eta=0.0))[0]
    assert torch.equal(alone[1], start[1])
    assert not torch.equal(alone[0], start[0])
    pulled = match(start, classes, target, linear, text, None, settings(match_epochs=1, eta=1.0))[0]
    leaf = start.clone().requires_grad_()
    prototype_term(leaf, text, 0.1).backward()
    torch.testing.assert_close(pulled[1], start[1] - 0.1 * leaf.grad[1])


def test_a_bridge_joins_different_widths():
    linear, classes = LinearMap(*(t.float() for t in classifier())), torch.arange(3)
    target = grouped_gradients(draws(3, 8, 5, seed=4).float(), classes, linear)
    text = F.normalize(draws(3, 7, seed=6)).float()
    start = fresh_linear(7, 5, seed=0)
    features, bridge, _ = match(draws(3, 4, 5).float(), classes, target, linear, text, start, settings())
    assert features.shape == (3, 4, 5)
    assert bridge.weight.shape == (7, 5)
    assert not torch.equal(bridge.weight, start.weight)


def test_retraining_is_the_sgd_of_a_linear_layer():
    features = draws(3, 4, 5).float()
    options = settings(retrain_epochs=2, retrain_batch=5, retrain_lr=0.3)
    found = retrain(features, options, np.random.default_rng(1))
    rng = np.random.default_rng(1)
    layer = torch.nn.Linear(5, 3)
    layer.weight.data, layer.bias.data = fresh_linear(3, 5, int(rng.integers(2**63)))
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.3)
    labels = torch.arange(3).repeat_interleave(4)
    for _ in range(2):
        for batch in torch.from_numpy(rng.permutation(12)).split(5):
            optimiser.zero_grad()
            F.cross_entropy(layer(features.flatten(0, 1)[batch]), labels[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(found.weight, layer.weight.detach())
    torch.testing.assert_close(found.bias, layer.bias.detach())


def test_growth_keeps_old_features_and_rows():
    first = grown_features(None, 2, 4, 5, seed=3)
    second = grown_features(first + 1, 5, 4, 5, seed=3)
    assert torch.equal(second[:2], first + 1)
    assert torch.equal(second[2:], grown_features(None, 5, 4, 5, seed=3)[2:])
    assert grown_features(second, 5, 4, 5, seed=3) is second
    small = grown_classifier(None, 2, 5, seed=1)
    large = grown_classifier(small, 6, 5, seed=2)
    assert torch.equal(large.weight[:2], small.weight)
    assert torch.equal(large.bias[:2], small.bias)
    assert large.weight.shape == (6, 5)
    assert large.weight.abs().max() <= 5**-0.5


# Augmentation behind gradients.


@pytest.mark.parametrize("strategy", ["colour", "crop", "cutout", "flip", "scale", "rotate"])
@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (1, 1, 8, 6)])
def test_each_augmentation_keeps_the_shape_and_repeats(strategy, shape):
    images = draws(*shape).float()
    function = getattr(siamese, strategy)
    once, again = (function(images, np.random.default_rng(2)) for _ in range(2))
    assert once.shape == images.shape
    assert torch.equal(once, again)
    assert torch.isfinite(once).all()


def test_crop_moves_by_at_most_an_eighth():
    images = torch.zeros(64, 1, 16, 16)
    images[:, 0, 8, 8] = 1
    moved = siamese.crop(images, np.random.default_rng(0))
    places = moved.flatten(1).argmax(dim=1)
    rows, columns = places // 16, places % 16
    assert set(rows.tolist()) == set(columns.tolist()) == {6, 7, 8, 9, 10}
    assert (moved.sum(dim=(1, 2, 3)) == 1).all()


def test_cutout_blanks_at_most_a_quarter():
    blank = (siamese.cutout(torch.ones(64, 2, 8, 8), np.random.default_rng(0)) == 0).float().mean(dim=(1, 2, 3))
    assert blank.max() == 0.25
    assert blank.min() < 0.25


def test_a_turn_there_and_back_of_a_symmetric_image():
    disc = torch.zeros(1, 1, 9, 9)
    disc[..., 4, 4] = 1
    turned = siamese.rotate(disc, np.random.default_rng(0))
    assert turned[0, 0, 4, 4] == pytest.approx(1)
