"""Leaning and energies on prototypes themselves, where both are known exactly."""

from __future__ import annotations

import pytest
import torch

from fedfeat.geometry import group_energies, simplex_etf
from fedfeat_reproduction.figures.tail_drift import class_means, lean


@pytest.mark.parametrize(("classes", "old"), [(4, 2), (10, 8), (6, 3)])
def test_perfect_features_of_old_classes(classes: int, old: int) -> None:
    frame = simplex_etf(classes, 16, seed=3)
    labels = torch.arange(old)
    cosines = frame[:, :old].T @ frame
    found = lean(cosines, labels, old)
    assert torch.allclose(found.own, torch.ones(old), atol=1e-5)
    assert torch.allclose(found.head, torch.full((old,), -1 / (classes - 1)), atol=1e-5)
    energies = group_energies(cosines, num_old=old, rank_norm="none")
    assert torch.allclose(energies.head, torch.full((old,), (classes - old) / (old * (classes - 1))), atol=1e-5)
    by_rank = group_energies(cosines, num_old=old, rank_norm="true_rank")
    assert not (by_rank.head > by_rank.tail).any()


def test_the_nearest_of_the_current_classes_counts() -> None:
    cosines = torch.tensor([[0.9, 0.1, -0.2, 0.3], [0.2, 0.4, 0.8, 0.7]])
    found = lean(cosines, torch.tensor([0, 1]), 2)
    assert found.own.tolist() == pytest.approx([0.9, 0.4])
    assert found.head.tolist() == pytest.approx([0.3, 0.8])


def test_means_of_classes_by_hand() -> None:
    means = class_means(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 2]), 3)
    assert means[[0, 2]].tolist() == [1.0, 4.0]
    assert means[1].isnan()
    shares = class_means(torch.tensor([True, False, True, True]), torch.tensor([0, 0, 1, 1]), 2)
    assert shares.tolist() == [0.5, 1.0]
