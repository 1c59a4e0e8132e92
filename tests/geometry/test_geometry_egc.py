import math
from itertools import cycle
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfeat.geometry import Energies, egc_correct, egc_gate, group_energies, simplex_etf

SPLITS = [(10, 2), (10, 4), (100, 20), (11, 1)]  # seen classes, classes of the current task
ETFS = [(c, h, c) for c, h in SPLITS] + [(10, 4, 11), (20, 10, 100), (90, 10, 100), (11, 1, 50), (5, 4, 64)]
# Each with one way to count dimensions: they scale energies alone.
NORMED = [(*etf, rank_norm) for etf, rank_norm in zip(ETFS, cycle(["minus_one", "true_rank", "none"]), strict=False)]
PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


class Geometry(NamedTuple):
    """Prototypes of the seen classes, tail columns first, and the projectors of both groups."""

    w: Tensor
    num_old: int
    head: Tensor
    tail: Tensor

    @classmethod
    def of(
        cls,
        num_classes: int,
        num_head: int,
        etf_size: int | None = None,
        *,
        centered: bool = False,
        dim: int = 128,
    ):
        w = simplex_etf(etf_size or num_classes, dim, seed=9).double()[:, :num_classes]
        num_old = num_classes - num_head
        return cls(w, num_old, projector(w[:, num_old:], centered), projector(w[:, :num_old], centered))


def projector(columns: Tensor, centered: bool = False) -> Tensor:
    """The d x d projector onto the span of some prototypes, or of their differences."""
    if centered:
        columns = columns - columns.mean(dim=1, keepdim=True)
    if columns.abs().max() < 1e-6:
        return torch.zeros(len(columns), len(columns), dtype=columns.dtype)
    return columns @ torch.linalg.pinv(columns, rtol=1e-5)


def unit_features(count: int, dim: int = 128, seed: int = 0) -> Tensor:
    x = torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=1)


def features_near(w: Tensor, count: int, seed: int = 0, noise: float = 0.7) -> Tensor:
    """Unit features around prototypes, the newest classes first, so that energies are not tiny."""
    labels = (-1 - torch.arange(count)) % w.shape[1]
    return torch.nn.functional.normalize(w.T[labels] + noise * unit_features(count, len(w), seed), dim=1)


def denominator(size: int, rank_norm: str) -> int:
    return {"minus_one": max(size - 1, 1), "true_rank": size, "none": 1}[rank_norm]


def published_energies(x: Tensor, geometry: Geometry, rank_norm: str = "minus_one") -> Energies:
    """Equation 9, with projectors."""
    num_head = geometry.w.shape[1] - geometry.num_old
    return Energies(
        head=(x @ geometry.head).square().sum(dim=1) / denominator(num_head, rank_norm),
        tail=(x @ geometry.tail).square().sum(dim=1) / denominator(geometry.num_old, rank_norm),
    )


def published_correction(x: Tensor, geometry: Geometry, gate: Tensor, tail_boost: bool = True) -> Tensor:
    """Equation 13 with projectors, then inner products with prototypes (no final normalisation)."""
    corrected = x - gate[:, None] * (x @ geometry.head)
    if tail_boost:
        corrected = corrected + gate[:, None] * (x @ geometry.tail)
    return corrected @ geometry.w


@pytest.mark.parametrize(("num_classes", "num_head", "etf_size", "rank_norm"), NORMED)
@pytest.mark.parametrize("subspace", ["span", "centered"])
def test_energies_from_logits_equal_those_of_projectors(num_classes, num_head, etf_size, rank_norm, subspace):
    geometry = Geometry.of(num_classes, num_head, etf_size, centered=subspace == "centered")
    x = features_near(geometry.w, 40)
    ours = group_energies(
        (x @ geometry.w).float(),
        num_old=geometry.num_old,
        rank_norm=rank_norm,
        subspace=subspace,
        num_prototypes=etf_size,
    )
    theirs = published_energies(x, geometry, rank_norm)
    assert torch.allclose(ours.head.double(), theirs.head, atol=1e-5)
    assert torch.allclose(ours.tail.double(), theirs.tail, atol=1e-5)


@pytest.mark.parametrize(("num_classes", "num_head", "etf_size", "rank_norm"), NORMED)
@pytest.mark.parametrize("tail_boost", [True, False])
@pytest.mark.parametrize("subspace", ["span", "centered"])
def test_corrected_logits_equal_those_of_projectors(num_classes, num_head, etf_size, rank_norm, tail_boost, subspace):
    geometry = Geometry.of(num_classes, num_head, etf_size, centered=subspace == "centered")
    x = features_near(geometry.w, 60)
    energies = published_energies(x, geometry, rank_norm)
    prior = float(energies.head.median()) * 0.5
    gate = ((energies.head - prior) / (energies.head + energies.tail + 1e-8)).clamp(min=0)
    expected = published_correction(x, geometry, gate, tail_boost)
    ours = egc_correct(
        (x @ geometry.w).float(),
        num_old=geometry.num_old,
        prior_head=prior,
        rank_norm=rank_norm,
        subspace=subspace,
        tail_boost=tail_boost,
        num_prototypes=etf_size,
    )
    if num_head > 1 or subspace == "span":  # one prototype has no differences
        assert (expected - x @ geometry.w).abs().max() > 1e-2
    assert torch.allclose(ours.double(), expected, atol=1e-5)


@pytest.mark.parametrize(("num_classes", "num_head"), SPLITS)
def test_centred_subspaces_of_a_whole_etf_change_only_the_gate(num_classes, num_head):
    span, centred = (Geometry.of(num_classes, num_head, centered=c) for c in (False, True))
    x = features_near(span.w, 40)
    gate = egc_gate(published_energies(x, centred), 0.01)
    expected = published_correction(x, span, gate)
    assert torch.allclose(expected, published_correction(x, centred, gate), atol=1e-6)
    ours = egc_correct((x @ span.w).float(), num_old=span.num_old, prior_head=0.01, subspace="centered")
    assert torch.allclose(ours.double(), expected, atol=1e-5)


@pytest.mark.parametrize(("num_classes", "num_head"), [*SPLITS, (4, 2), (2, 1), (40, 20)])
def test_correction_shrinks_head_contrasts_and_stretches_tail_contrasts(num_classes, num_head):
    geometry = Geometry.of(num_classes, num_head)
    z = features_near(geometry.w, 40, seed=2) @ geometry.w
    tail, head = z[:, : geometry.num_old], z[:, geometry.num_old :]
    gate = egc_gate(group_energies(z, num_old=geometry.num_old), 0.02)[:, None]
    assert gate.max() > 0.05
    tail_mean, head_mean = tail.mean(dim=1, keepdim=True), head.mean(dim=1, keepdim=True)
    expected = torch.cat(
        [tail_mean + (1 + gate) * (tail - tail_mean), head_mean + (1 - gate) * (head - head_mean)], dim=1
    )
    ours = egc_correct(z, num_old=geometry.num_old, prior_head=0.02)
    assert torch.allclose(ours.double(), expected, atol=1e-5)


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    split=st.sampled_from(ETFS),
    prior=st.floats(0, 0.5),
    rank_norm=st.sampled_from(["minus_one", "true_rank", "none"]),
    tail_boost=st.booleans(),
)
def test_ranking_inside_each_group_never_changes(seed, split, prior, rank_norm, tail_boost):
    num_classes, num_head, etf_size = split
    geometry = Geometry.of(num_classes, num_head, etf_size)
    z = features_near(geometry.w, 20, seed).float() @ geometry.w.float()
    corrected = egc_correct(
        z,
        num_old=geometry.num_old,
        prior_head=prior,
        rank_norm=rank_norm,
        tail_boost=tail_boost,
        num_prototypes=etf_size,
    )
    for group in (slice(0, geometry.num_old), slice(geometry.num_old, None)):
        order = z[:, group].argsort(dim=1)
        assert (corrected[:, group].gather(1, order).diff(dim=1) > -1e-6).all()


@PROPERTY
@given(seed=st.integers(0, 10_000), split=st.sampled_from(ETFS), prior=st.floats(0, 2))
def test_the_gate_lies_between_zero_and_one(seed, split, prior):
    num_classes, num_head, etf_size = split
    geometry = Geometry.of(num_classes, num_head, etf_size)
    z = unit_features(20, seed=seed) @ geometry.w
    gate = egc_gate(group_energies(z, num_old=geometry.num_old, num_prototypes=etf_size), prior)
    assert gate.min() >= 0
    assert gate.max() < 1


@pytest.mark.parametrize(("num_classes", "num_head"), [*SPLITS, (4, 2), (2, 1)])
def test_energies_of_exact_prototypes(num_classes, num_head):
    num_tail = num_classes - num_head
    w = simplex_etf(num_classes, 128, seed=1)
    energies = group_energies(w.T @ w, num_old=num_tail, rank_norm="none")
    of_tail, of_head = slice(0, num_tail), slice(num_tail, None)
    assert energies.head[of_head].sub(1).abs().max() < 1e-5
    assert energies.tail[of_tail].sub(1).abs().max() < 1e-5
    assert energies.head[of_tail].sub(num_head / (num_tail * (num_classes - 1))).abs().max() < 1e-5
    assert energies.tail[of_head].sub(num_tail / (num_head * (num_classes - 1))).abs().max() < 1e-5


def test_energies_of_exact_prototypes_of_ten_classes_with_two_new():
    w = simplex_etf(10, 64, seed=1)
    energies = group_energies(w.T @ w, num_old=8, rank_norm="none")
    assert float(energies.head[0]) == pytest.approx(0.027778, abs=1e-6)
    assert float(energies.tail[9]) == pytest.approx(0.444444, abs=1e-6)


def perfect_gate(num_classes: int, num_head: int, rank_norm: str = "minus_one") -> float:
    """Gate of a perfect head sample under the prior of perfect tail samples."""
    w = simplex_etf(num_classes, 128, seed=1)
    energies = group_energies(w.T @ w, num_old=num_classes - num_head, rank_norm=rank_norm)
    return float(egc_gate(energies, energies.head[0])[-1])


@pytest.mark.parametrize(
    ("num_classes", "num_head", "gate", "margin"),
    [
        (4, 2, 0.50, 0.94),
        (6, 3, 0.667, 0.74),
        (10, 4, 0.842, 0.41),
        (10, 2, 0.914, 0.14),
        (40, 20, 0.950, 0.31),
        (100, 20, 0.988, 0.06),
        (100, 10, 0.990, 0.03),
    ],
)
def test_a_perfect_head_sample_keeps_its_class_with_the_known_gate_and_margin(num_classes, num_head, gate, margin):
    assert perfect_gate(num_classes, num_head) == pytest.approx(gate, abs=6e-4)
    geometry = Geometry.of(num_classes, num_head)
    x = geometry.w.T[-1:]
    prior = num_head / ((num_classes - num_head) * (num_classes - 1)) / max(num_head - 1, 1)
    z = egc_correct(x @ geometry.w, num_old=geometry.num_old, prior_head=prior)[0].double()
    assert z.argmax() == num_classes - 1
    g = perfect_gate(num_classes, num_head)
    length = (x - g * (x @ geometry.head) + g * (x @ geometry.tail)).norm()
    best, second = z.topk(2).values / length
    assert float(best - second) == pytest.approx(margin, abs=6e-3)


@pytest.mark.parametrize(("num_classes", "num_head", "gate"), [(10, 2, 0.875), (100, 20, 0.987)])
def test_true_ranks_give_nearly_the_same_gate(num_classes, num_head, gate):
    assert perfect_gate(num_classes, num_head, "true_rank") == pytest.approx(gate, abs=6e-4)


def test_centred_energies_open_the_gate_fully_on_a_perfect_head_sample():
    w = simplex_etf(10, 64, seed=1).double()
    energies = group_energies(w.T @ w, num_old=6, subspace="centered")
    assert float(egc_gate(energies, energies.head[0])[-1]) == pytest.approx(1.0, abs=2e-6)


@pytest.mark.parametrize("num_old", [1, 9])
@pytest.mark.parametrize("rank_norm", ["minus_one", "true_rank", "none"])
@pytest.mark.parametrize("subspace", ["span", "centered"])
def test_a_group_of_one_class_is_finite(num_old, rank_norm, subspace):
    w = simplex_etf(10, 64, seed=0)
    z = features_near(w.double(), 30).float() @ w
    corrected = egc_correct(z, num_old=num_old, prior_head=0.01, rank_norm=rank_norm, subspace=subspace)
    assert torch.isfinite(corrected).all()


def test_a_single_head_class_keeps_its_logit():
    geometry = Geometry.of(11, 1)
    z = features_near(geometry.w, 33) @ geometry.w
    corrected = egc_correct(z, num_old=10, prior_head=0.0)
    assert torch.allclose(corrected[:, 10].double(), z[:, 10], atol=1e-6)
    assert not torch.allclose(corrected[:, :10].double(), z[:, :10], atol=1e-3)


def test_nothing_changes_while_head_energy_stays_under_the_prior():
    geometry = Geometry.of(10, 4)
    z = (features_near(geometry.w, 50) @ geometry.w).float()
    energies = group_energies(z, num_old=6)
    prior = float(energies.head.median())
    under = energies.head <= prior
    assert 0 < under.sum() < 50
    corrected = egc_correct(z, num_old=6, prior_head=prior)
    assert torch.equal(corrected[under], z[under])
    assert (corrected[~under] != z[~under]).any(dim=1).all()


@pytest.mark.parametrize("num_old", [0, 10])
def test_without_old_or_without_new_classes_nothing_is_corrected(num_old):
    w = simplex_etf(10, 32, seed=0)
    z = features_near(w.double(), 20).float() @ w
    assert torch.equal(egc_correct(z, num_old=num_old, prior_head=0.0), z)


def test_correction_can_hand_a_sample_from_a_head_to_a_tail_class():
    """A tail sample pulled to two head classes alike is what the correction is for."""
    geometry = Geometry.of(6, 3)
    x = torch.nn.functional.normalize(1.0 * geometry.w[:, 0] + 1.02 * geometry.w[:, 4], dim=0)[None]
    z = x @ geometry.w
    assert z.argmax() == 4
    assert egc_correct(z, num_old=3, prior_head=0.0)[0].argmax() == 0


def test_gate_of_hand_made_energies():
    energies = Energies(head=torch.tensor([0.5, 0.2, 0.0]), tail=torch.tensor([0.25, 0.2, 0.0]))
    assert torch.allclose(egc_gate(energies, 0.2), torch.tensor([0.4, 0.0, 0.0]), atol=1e-6)
    assert float(egc_gate(energies, 0.2, eps=0.25)[0]) == pytest.approx(0.3)


def test_priors_may_be_tensors():
    z = features_near(Geometry.of(10, 4).w, 12).float() @ Geometry.of(10, 4).w.float()
    by_number = egc_correct(z, num_old=6, prior_head=0.03)
    assert torch.equal(by_number, egc_correct(z, num_old=6, prior_head=torch.tensor(0.03)))


@pytest.mark.parametrize("num_classes", [4, 50])
def test_without_old_classes_the_head_spans_the_frame_and_the_tail_nothing(num_classes):
    w = simplex_etf(num_classes, 64, seed=0)
    x = features_near(w.double(), 8).float()
    energies = group_energies(x @ w, num_old=0)
    inside = (x.double() @ projector(w.double())).square().sum(dim=1)
    assert torch.allclose(energies.head.double(), inside / (num_classes - 1), atol=1e-5)
    assert energies.tail.abs().max() == 0


def test_shared_direction_of_both_groups_is_the_sum_of_prototypes():
    geometry = Geometry.of(10, 4)
    shared = torch.nn.functional.normalize(geometry.w[:, 6:].sum(dim=1), dim=0)
    assert torch.allclose(geometry.head @ shared, shared, atol=1e-6)
    assert torch.allclose(geometry.tail @ shared, shared, atol=1e-6)
    assert math.isclose(float(torch.trace(geometry.head @ geometry.tail)), 1.0, abs_tol=1e-5)
