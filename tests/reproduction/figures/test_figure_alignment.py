"""Alignment across clients, with values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfeat_reproduction.figures.feature_alignment import centred, client_alignment

RIGHT, UP, LEFT = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
DIAGONAL = [1.0, 1.0]


def test_same_image_two_models_by_hand() -> None:
    features = torch.tensor([[RIGHT, RIGHT, UP], [RIGHT, UP, [0.0, -3.0]]])
    found = client_alignment(features, torch.tensor([0, 0, 1]), 2)
    assert found.shape == (2, 1)
    assert found[:, 0].tolist() == [0.5, -1.0]  # class 0: cosines 1 and 0; class 1: opposite


def test_pairs_come_in_order_and_classes_are_averaged_apart() -> None:
    features = torch.tensor([[RIGHT], [DIAGONAL], [UP]])
    found = client_alignment(features, torch.tensor([1]), 2)
    assert torch.allclose(found[1], torch.tensor([math.sqrt(0.5), 0.0, math.sqrt(0.5)], dtype=torch.double))
    assert found[0].isnan().all()  # no image of class 0


def test_a_common_mean_hides_disagreement_until_it_is_taken_out() -> None:
    offset = torch.tensor([0.0, 100.0])
    features = torch.tensor([[RIGHT, LEFT], [LEFT, RIGHT]]) + offset
    labels = torch.tensor([0, 0])
    assert client_alignment(features, labels, 1).item() > 0.999
    assert math.isclose(client_alignment(centred(features), labels, 1).item(), -1.0)


def test_a_shift_of_one_whole_model_counts() -> None:
    """The mean is that of all models together: taking out each model's own would hide that they disagree."""
    features = torch.tensor([[RIGHT, UP], [LEFT, UP]])  # the second model turns one image around
    found = client_alignment(centred(features), torch.tensor([0, 1]), 2)[:, 0]
    # common mean (0, 1/2): (1, -1/2) against (-1, -1/2), and (0, 1/2) with itself
    assert found.tolist() == pytest.approx([-0.75 / 1.25, 1.0])


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_lengths_do_not_count_and_equal_models_agree(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(1, 12, 5, generator=generator, dtype=torch.double)
    labels = torch.arange(12) % 3
    same = client_alignment(torch.cat([one, scale * one]), labels, 3)
    assert torch.allclose(same, torch.ones(3, 1, dtype=torch.double))
    other = torch.randn(1, 12, 5, generator=generator, dtype=torch.double)
    plain, scaled = (client_alignment(torch.cat([one, s * other]), labels, 3) for s in (1.0, scale))
    assert torch.allclose(plain, scaled)
    assert plain.abs().max() <= 1
