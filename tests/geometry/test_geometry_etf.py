import math

import numpy as np
import pytest
import torch

from fedfeat.core.errors import ConfigError
from fedfeat.geometry import etf_cosine, orthonormal_basis, simplex_etf

DIM = 512
SIZES = (2, 3, 10, 100, 200)


def rank(matrix: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix.double(), rtol=1e-5))


@pytest.mark.parametrize("basis", ["haar", "axis"])
@pytest.mark.parametrize("num_classes", SIZES)
def test_prototypes_have_norm_one_and_one_common_cosine(num_classes, basis):
    w = simplex_etf(num_classes, DIM, seed=3, basis=basis)
    target = torch.eye(num_classes, dtype=torch.float64)
    target[target == 0] = -1 / (num_classes - 1)
    assert w.dtype == torch.float32
    assert w.shape == (DIM, num_classes)
    # The product in double precision: what is bounded is the error of the ETF, not that of the product.
    assert (w.double().T @ w.double() - target).abs().max() < 1e-6


@pytest.mark.parametrize("num_classes", SIZES)
def test_the_whole_frame_has_rank_one_less_than_its_size(num_classes):
    assert rank(simplex_etf(num_classes, DIM, seed=0)) == num_classes - 1


@pytest.mark.parametrize("num_classes", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_strict_subset_of_prototypes_is_independent(num_classes, share):
    size = 1 + round(share * (num_classes - 2))
    chosen = np.random.default_rng(num_classes).choice(num_classes, size, replace=False)
    assert rank(simplex_etf(num_classes, DIM, seed=0)[:, chosen]) == size


@pytest.mark.parametrize("num_classes", SIZES)
def test_prototypes_sum_to_zero(num_classes):
    assert simplex_etf(num_classes, DIM, seed=1).double().sum(dim=1).abs().max() < 1e-6


@pytest.mark.parametrize(("before", "after", "cosine"), [(2, 4, 0.81650), (3, 6, 0.89443), (20, 40, 0.98710)])
def test_growth_turns_old_prototypes_by_the_known_angle(before, after, cosine):
    old, new = (simplex_etf(n, DIM, seed=5).double() for n in (before, after))
    own = (old * new[:, :before]).sum(dim=0)
    assert torch.allclose(own, torch.full_like(own, cosine), atol=5e-6)
    exact = math.sqrt((before - 1) / before * after / (after - 1))
    assert torch.allclose(own, torch.full_like(own, exact), atol=1e-6)


def test_no_rotation_of_a_frame_brings_old_prototypes_closer_than_growth_does():
    old, new = (simplex_etf(n, 64, seed=5).double() for n in (4, 8))
    other = simplex_etf(8, 64, seed=6).double()[:, :4]
    assert (old * new[:, :4]).sum(dim=0).mean() == pytest.approx(_procrustes(other, old), abs=1e-6)


def _procrustes(moved: torch.Tensor, fixed: torch.Tensor) -> float:
    """Mean cosine of columns after the best rotation of ``moved`` onto ``fixed``."""
    u, _, v = torch.linalg.svd(fixed @ moved.T)
    return float((fixed * (u @ v @ moved)).sum(dim=0).mean())


def test_same_seed_gives_the_same_bits_and_another_seed_another_frame():
    one, two = (simplex_etf(10, DIM, seed=2023) for _ in range(2))
    assert torch.equal(one, two)
    assert (one * simplex_etf(10, DIM, seed=2024)).sum(dim=0).abs().mean() < 0.2


def test_the_global_generators_do_not_reach_the_frame():
    torch.manual_seed(0)
    one = simplex_etf(10, 32, seed=7)
    torch.manual_seed(1)
    np.random.seed(1)
    assert torch.equal(one, simplex_etf(10, 32, seed=7))


@pytest.mark.parametrize(("few", "many"), [(1, 5), (1, 32), (5, 32)])
def test_a_longer_basis_begins_with_the_shorter_one(few, many):
    short, long = (orthonormal_basis(n, 32, seed=4) for n in (few, many))
    assert torch.allclose(short, long[:, :few], atol=1e-12)
    assert torch.allclose(long.T @ long, torch.eye(many, dtype=torch.float64), atol=1e-12)


def test_a_haar_basis_favours_no_orthant():
    """Uniform entries would give a first column near the ones vector; Gaussian ones with fixed signs do not."""
    cosines = [float(orthonormal_basis(1, 64, seed=s).mean()) * 8 for s in range(200)]
    assert abs(np.mean(cosines)) < 3 / math.sqrt(64 * 200)
    assert np.std(cosines) == pytest.approx(1 / 8, rel=0.2)


@pytest.mark.parametrize("column", [0, 3])
def test_no_entry_of_a_haar_basis_has_a_fixed_sign(column):
    """A Householder factor without signs fixed has a diagonal of one sign."""
    positive = sum(float(orthonormal_basis(4, 16, seed=s)[column, column]) > 0 for s in range(100))
    assert 30 < positive < 70


@pytest.mark.parametrize(("num_classes", "dim"), [(10, 9), (2, 1), (200, 64)])
def test_too_few_dimensions_are_refused_in_one_sentence(num_classes, dim):
    with pytest.raises(ConfigError) as caught:
        simplex_etf(num_classes, dim, seed=0)
    message = str(caught.value)
    assert "\n" not in message
    assert str(num_classes) in message
    assert f"got {dim}" in message


def test_as_many_dimensions_as_classes_are_enough():
    w = simplex_etf(10, 10, seed=0).double()
    target = torch.full((10, 10), -1 / 9, dtype=torch.float64).fill_diagonal_(1.0)
    assert (w.T @ w - target).abs().max() < 1e-6


@pytest.mark.parametrize("num_classes", [0, -1])
def test_a_frame_without_classes_is_refused(num_classes):
    with pytest.raises(ConfigError):
        simplex_etf(num_classes, 8, seed=0)


def test_a_single_class_has_one_unit_prototype():
    assert simplex_etf(1, 8, seed=0).norm() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("num_classes", "cosine"), [(2, -1.0), (3, -0.5), (11, -0.1), (1, 0.0)])
def test_cosine_between_prototypes(num_classes, cosine):
    assert etf_cosine(num_classes) == cosine


def test_the_pieces_can_be_had_from_one_place():
    from fedfeat import models
    from fedfeat.api import ETFHead, egc_correct, gsa_loss, simplex_etf

    assert ETFHead is models.ETFHead
    assert all(map(callable, (egc_correct, gsa_loss, simplex_etf)))
