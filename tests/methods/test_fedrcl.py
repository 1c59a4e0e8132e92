"""FedRCL: closed forms of both variants, a literal double loop, and batches in which a reduction has nothing to see."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfeat.algorithm.step import take_step
from fedfeat.methods.fedrcl import Pairs, full_contrast, full_relaxation, hard_contrast, hard_relaxation, over_stages
from fedfeat.runs.experiment import Experiment
from toy import toy_config, toy_dataset

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
TAU, THRESHOLD = 0.05, 0.7
LOSSES: dict[str, Callable[[Pairs], Tensor]] = {
    "hard contrast": lambda p: hard_contrast(p, TAU),
    "hard relaxation": lambda p: hard_relaxation(p, TAU, THRESHOLD),
    "full contrast": lambda p: full_contrast(p, TAU),
    "full relaxation": lambda p: full_relaxation(p, TAU, THRESHOLD),
}


def features(count: int, dim: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def at_angles(*degrees: float) -> Tensor:
    """Unit vectors in a plane, as long as their number says: only directions count."""
    radians = torch.tensor(degrees) * math.pi / 180
    lengths = torch.arange(1, len(degrees) + 1)[:, None]
    return torch.stack([radians.cos(), radians.sin()], dim=1) * lengths


def pair_at(cosine: float) -> Pairs:
    return Pairs(at_angles(0, math.degrees(math.acos(cosine))), torch.tensor([0, 0]))


def literal_hard(x: Tensor, y: Tensor, tau: float, threshold: float) -> tuple[float, float]:
    s = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=2).double()
    contrast = relaxation = 0.0
    for i in range(len(x)):
        partners = [j for j in range(len(x)) if j != i and y[j] == y[i]]
        positive = min([1.0, *(float(s[i, j]) for j in partners)])
        rivals = sorted((float(s[i, j]) for j in range(len(x)) if y[j] != y[i]), reverse=True)[:2]
        contrast += math.log(1 + sum(math.exp((n - positive) / tau) for n in rivals))
        least = min((float(s[i, j]) for j in partners), default=-1.0)
        if partners and least >= threshold:
            relaxation += math.log(1 + math.exp((least - 1) / tau))
    return contrast / len(x), relaxation / len(x)


def literal_full(x: Tensor, y: Tensor, tau: float, threshold: float) -> tuple[float, float]:
    s = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=2).double()
    contrasts, relaxations = [], []
    for i in range(len(x)):
        partners = [j for j in range(len(x)) if j != i and y[j] == y[i]]
        if not partners:
            continue
        total = sum(math.exp(float(s[i, k]) / tau) for k in range(len(x)) if k != i)
        contrasts.append(sum(-math.log(math.exp(float(s[i, j]) / tau) / total) for j in partners) / len(partners))
        close = sum(math.exp(float(s[i, k]) / tau) for k in partners if s[i, k] > threshold)
        relaxations.append(math.log(math.exp(1 / tau) + close) - 1 / tau)
    count = max(len(contrasts), 1)
    return sum(contrasts) / count, sum(relaxations) / count


@pytest.mark.parametrize(("cosine", "published"), [(0.7, 0.0025), (0.95, 0.31), (1.0, 0.69)])
def test_values_of_the_relaxation(cosine: float, published: float) -> None:
    value = float(hard_relaxation(pair_at(cosine), TAU, THRESHOLD - 1e-4))
    assert value == pytest.approx(math.log1p(math.exp((cosine - 1) / TAU)), rel=1e-3)
    assert value == pytest.approx(published, abs=0.005)
    assert float(full_relaxation(pair_at(cosine), TAU, THRESHOLD - 1e-4)) == pytest.approx(value, rel=1e-3)


def test_the_relaxation_starts_at_the_threshold() -> None:
    assert float(hard_relaxation(pair_at(0.69), TAU, THRESHOLD)) == 0.0
    assert float(hard_relaxation(pair_at(0.71), TAU, THRESHOLD)) > 0.0
    # Even the least similar partner must be too similar in the hard variant; the full one looks at each partner.
    pairs = Pairs(at_angles(0, 5, 80), torch.tensor([0, 0, 0]))
    assert float(hard_relaxation(pairs, TAU, THRESHOLD)) == 0.0
    assert float(full_relaxation(pairs, TAU, THRESHOLD)) > 0.1


def test_the_hard_contrast_by_hand() -> None:
    # Class 0 at 0 and 60 degrees, class 1 at 90, class 2 at 180.
    pairs = Pairs(at_angles(0, 60, 90, 180), torch.tensor([0, 0, 1, 2]))
    cos30, cos60 = math.sqrt(3) / 2, 0.5
    expected = [
        math.log(1 + math.exp((0 - cos60) / 0.5) + math.exp((-1 - cos60) / 0.5)),
        math.log(1 + math.exp((cos30 - cos60) / 0.5) + math.exp((-cos60 - cos60) / 0.5)),
        math.log(1 + math.exp((cos30 - 1) / 0.5) + math.exp((0 - 1) / 0.5)),  # alone: its positive is itself
        math.log(1 + math.exp((0 - 1) / 0.5) + math.exp((-cos60 - 1) / 0.5)),  # the third rival is not among two
    ]
    assert float(hard_contrast(pairs, 0.5)) == pytest.approx(sum(expected) / 4, rel=1e-5)


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    tau=st.sampled_from([0.05, 0.5]),
    threshold=st.sampled_from([-1.0, 0.2, 0.7]),
)
def test_both_variants_equal_the_literal_loops(seed: int, labels: list[int], tau: float, threshold: float) -> None:
    x, y = features(len(labels), seed=seed), torch.tensor(labels)
    pairs = Pairs(x, y)
    hard = float(hard_contrast(pairs, tau)), float(hard_relaxation(pairs, tau, threshold))
    full = float(full_contrast(pairs, tau)), float(full_relaxation(pairs, tau, threshold))
    assert hard == pytest.approx(literal_hard(x, y, tau, threshold), rel=1e-3, abs=1e-5)
    assert full == pytest.approx(literal_full(x, y, tau, threshold), rel=1e-3, abs=1e-5)


BATCHES = {
    "one sample": [3],
    "one class": [1, 1, 1, 1],
    "all alone": [0, 1, 2, 3],
    "one negative": [0, 0, 0, 1],
    "two samples": [0, 1],
}


@pytest.mark.parametrize("labels", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kind", ["random", "identical", "zero", "huge"])
def test_odd_batches_are_finite_with_finite_gradients(labels: list[int], kind: str) -> None:
    x = features(len(labels))
    x = {"random": x, "identical": torch.ones_like(x), "zero": torch.zeros_like(x), "huge": 1e15 * x}[kind]
    x.requires_grad_()
    for name, function in LOSSES.items():
        loss = function(Pairs(x, torch.tensor(labels)))
        (gradient,) = torch.autograd.grad(loss, x)
        assert torch.isfinite(loss), name
        assert torch.isfinite(gradient).all(), name


def test_a_batch_of_one_class_has_nothing_to_contrast() -> None:
    pairs = Pairs(features(5), torch.zeros(5, dtype=torch.long))
    assert float(hard_contrast(pairs, TAU)) == 0.0


def test_a_sample_that_is_alone_is_pushed_from_others_but_pulled_nowhere() -> None:
    x = at_angles(0, 30).requires_grad_()
    hard_contrast(Pairs(x, torch.tensor([0, 1])), TAU).backward()
    assert x.grad is not None
    assert x.grad[0, 1] > 0, "descent turns the first away from the second"
    assert float((x.grad[0] * x.detach()[0]).sum()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("tau", [0.001, 0.01])
def test_small_temperatures_do_not_overflow(tau: float) -> None:
    pairs = Pairs(features(8), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    assert all(math.isfinite(float(v)) for v in (hard_contrast(pairs, tau), full_contrast(pairs, tau)))


def test_cosines_are_of_full_precision_under_autocast() -> None:
    x, y = features(8), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    with torch.autocast("cpu", torch.bfloat16):
        lowered = Pairs(x, y).cosines
    assert lowered.dtype == torch.float32
    assert torch.equal(lowered, Pairs(x, y).cosines)


def test_the_loss_is_the_mean_over_every_level_of_the_network() -> None:
    experiment = Experiment(toy_config("replay+fedrcl"), toy_dataset())
    experiment.engine.begin_task(0)
    client = experiment.engine.client(0)
    batch = client.samples[:8]
    with torch.no_grad():
        step = take_step(
            client.network, client.images.plain(batch), client.labels(batch), client.seen, wants_intermediate=True
        )
    assert [tuple(level.shape) for level in step.intermediate] == [(8, 8), (8, 8), (8, 16)]
    contrast, relaxation = experiment.method.terms
    levels = [Pairs(level, step.labels) for level in step.intermediate]
    expected = sum(float(hard_contrast(p, TAU)) for p in levels) / 3
    assert float(contrast.function(step)) == pytest.approx(expected, rel=1e-6)
    expected = sum(float(hard_relaxation(p, TAU, THRESHOLD)) for p in levels) / 3
    assert float(relaxation.function(step)) == pytest.approx(expected, rel=1e-6)
    assert float(over_stages(lambda pairs: pairs.cosines.diagonal().mean())(step)) == pytest.approx(1.0)


def test_the_two_parts_are_weighted_and_logged_apart() -> None:
    method = toy_config("replay+fedrcl", fedrcl={"alpha": 0.5, "beta": 0}).build_method()
    assert [(t.name, t.weight) for t in method.terms] == [("rcl", 0.5), ("rcl_relaxation", 0.0)]
    assert [t.name for t in method.active_terms(0)] == ["ce", "rcl"]
    assert method.wants_intermediate
    assert method.sends == {}


def test_the_gradient_is_clipped_at_ten_unless_told_otherwise() -> None:
    assert toy_config("replay+fedrcl").build_method().grad_clip == 10.0
    assert toy_config("replay+fedrcl", fedrcl={"grad_clip": 3}).build_method().grad_clip == 3.0
    assert toy_config("replay+fedrcl", fedrcl={"grad_clip": "none"}).build_method().grad_clip is None
