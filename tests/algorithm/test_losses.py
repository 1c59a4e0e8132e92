import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.algorithm.losses import cross_entropy, new_class_cross_entropy, temperature_scaled_cross_entropy

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)
NEUTRAL = {"tau_old": 1.0, "tau_new": 1.0, "weight_old": 1.0, "weight_new": 1.0}


def logits(rows=8, columns=5, seed=0):
    return 3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_cross_entropy_by_hand():
    z = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    assert float(cross_entropy(z, torch.tensor([0, 1]))) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


@PROPERTY
@given(seed=st.integers(0, 1000), num_old=st.integers(1, 3))
def test_new_class_loss_is_the_loss_on_the_new_columns(seed, num_old):
    z, y = logits(seed=seed), torch.arange(8) % (5 - num_old) + num_old
    expected = F.cross_entropy(z[:, num_old:], y - num_old)
    assert torch.equal(new_class_cross_entropy(z, y, num_old), expected)
    assert not torch.isclose(expected, F.cross_entropy(z, y))


def test_new_class_loss_has_exactly_no_gradient_on_old_rows():
    weight = logits(5, 6, seed=1).requires_grad_()
    new_class_cross_entropy(logits(8, 6) @ weight.T, torch.arange(8) % 3 + 2, 2).backward()
    assert (weight.grad[:2] == 0).all()
    assert (weight.grad[2:] != 0).all()


@pytest.mark.parametrize("num_old", [0, 4])
def test_new_class_loss_is_the_full_loss_in_the_first_task_and_for_a_single_new_class(num_old):
    z, y = logits(), torch.full((8,), 4)
    assert torch.equal(new_class_cross_entropy(z, y, num_old), F.cross_entropy(z, y))


@PROPERTY
@given(seed=st.integers(0, 1000), num_old=st.integers(0, 5))
def test_code_form_without_temperatures_and_weights_is_cross_entropy(seed, num_old):
    z, y = logits(seed=seed), torch.arange(8) % 5
    assert torch.allclose(temperature_scaled_cross_entropy(z, y, num_old, **NEUTRAL), F.cross_entropy(z, y))


@pytest.mark.parametrize("form", ["code", "paper"])
def test_temperatures_do_nothing_in_the_first_task(form):
    z, y = logits(), torch.arange(8) % 5
    assert torch.equal(temperature_scaled_cross_entropy(z, y, 0, form=form), F.cross_entropy(z, y))


def softmax_loss(row, label):
    return math.log(sum(math.exp(v) for v in row)) - row[label]


# One old class and two new ones; temperatures 0.5 and 2, weights 3 and 0.25.
TABLE = [[1.0, -1.0, 2.0], [0.0, 4.0, 2.0], [-1.0, 2.0, 0.5]]
SETTINGS = {"tau_old": 0.5, "tau_new": 2.0, "weight_old": 3.0, "weight_new": 0.25}
OLD_ROW = softmax_loss([2.0, -0.5, 1.0], 0)
NEW_ROWS = softmax_loss([0.0, 2.0, 1.0], 1), softmax_loss([-2.0, 1.0, 0.25], 2)


def tts(rows, labels, **more):
    return float(temperature_scaled_cross_entropy(torch.tensor(rows), torch.tensor(labels), 1, **SETTINGS, **more))


def test_paper_form_adds_the_mean_of_each_group():
    expected = 3.0 * OLD_ROW + 0.25 * sum(NEW_ROWS) / 2
    assert tts(TABLE, [0, 1, 2], form="paper") == pytest.approx(expected, rel=1e-5)


def test_code_form_divides_rows_again_and_averages_once():
    old = softmax_loss([4.0, -1.0, 2.0], 0)
    new = softmax_loss([0.0, 1.0, 0.5], 1) + softmax_loss([-1.0, 0.5, 0.125], 2)
    assert tts(TABLE, [0, 1, 2]) == pytest.approx((3.0 * old + 0.25 * new) / 3, rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "labels", "expected"),
    [
        (TABLE[1:], [1, 2], 0.25 * sum(NEW_ROWS) / 2),
        (TABLE[:1], [0], 3.0 * OLD_ROW),
    ],
    ids=["no old sample", "no new sample"],
)
def test_paper_form_skips_an_empty_group(rows, labels, expected):
    assert tts(rows, labels, form="paper") == pytest.approx(expected, rel=1e-5)


def test_code_form_is_finite_for_a_batch_of_one_group():
    assert tts(TABLE[:1], [0]) == pytest.approx(3.0 * softmax_loss([4.0, -1.0, 2.0], 0), rel=1e-5)


def test_groups_are_told_apart_by_label_alone():
    """The same row counts as old or new by the class it belongs to."""
    row = [[0.0, 0.0, 0.0]]
    assert tts(row, [0]) == pytest.approx(3.0 * math.log(3), rel=1e-5)
    assert tts(row, [1]) == pytest.approx(0.25 * math.log(3), rel=1e-5)
    assert tts(row, [2]) == pytest.approx(0.25 * math.log(3), rel=1e-5)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_defaults_are_the_published_temperatures_and_weights(form):
    z, y = logits(), torch.arange(8) % 5
    explicit = temperature_scaled_cross_entropy(
        z, y, 2, tau_old=0.9, tau_new=1.1, weight_old=1.1, weight_new=0.9, form=form
    )
    assert torch.equal(temperature_scaled_cross_entropy(z, y, 2, form=form), explicit)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_gradients_of_an_empty_group_are_finite(form):
    z = logits().requires_grad_()
    temperature_scaled_cross_entropy(z, torch.full((8,), 4), 2, form=form).backward()
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().max() > 0
