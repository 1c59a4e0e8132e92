import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.geometry import gsa_loss, simplex_etf

COUNTS = (5, 2, 5, 5, 3, 2, 4, 2, 49, 51)
TAUS = (0.07, 0.1, 0.5, 1.0)
LABELS = torch.repeat_interleave(torch.arange(10), torch.tensor(COUNTS))
PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


def closed_form(counts, same, cross, tau, num_classes=10):
    """The loss when all cosines within a class are ``same`` and all others ``cross``."""
    total = sum(counts)

    def row(n, u, v):
        z = n * math.exp(u / tau) + (total - n) * math.exp(v / tau)
        return (n, u / tau - math.log(z)), (total - n, v / tau - math.log(z))

    rows = [
        sum(k * math.exp(f) * (f - p) for (k, f), (_, p) in zip(row(n, same, cross), target, strict=True))
        for n in counts
        for target in [row(n, 1.0, -1 / (num_classes - 1))]
    ]
    return sum(rows) / len(rows)


def double_loop(features, labels, num_classes, tau, *, kl="FP", include_self=True):
    """Equations 3 to 5, entry by entry."""
    features, labels = features.double().tolist(), labels.tolist()
    size = len(labels)

    def cosine(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    def softmax(row):
        total = sum(math.exp(v / tau) for v in row)
        return [math.exp(v / tau) / total for v in row]

    def divergence(p, q):
        return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))

    by_class = {}
    for a in range(size):
        others = [b for b in range(size) if include_self or b != a]
        f = softmax([cosine(features[a], features[b]) for b in others])
        p = softmax([1.0 if labels[a] == labels[b] else -1 / (num_classes - 1) for b in others])
        value = {"FP": divergence(f, p), "PF": divergence(p, f)}
        value["sym"] = 0.5 * (value["FP"] + value["PF"])
        by_class.setdefault(labels[a], []).append(value[kl])
    return sum(sum(rows) / len(rows) for rows in by_class.values()) / len(by_class)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rotation(dim, seed=0):
    return torch.linalg.qr(gaussian(dim, dim, seed=seed).double())[0]


def collapsed(labels, num_classes, dim=64, seed=0):
    """Features that are prototypes up to one rotation and positive lengths."""
    scale = gaussian(len(labels), seed=seed + 1).exp()
    return (
        ((rotation(dim, seed) @ simplex_etf(num_classes, dim, seed=seed).double()).T[labels]).float() * scale[:, None]
    )


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("kl", ["FP", "PF", "sym"])
@pytest.mark.parametrize("include_self", [True, False])
def test_loss_vanishes_at_rotated_and_rescaled_prototypes(tau, kl, include_self):
    features = collapsed(LABELS, 10)
    loss = gsa_loss(features, LABELS, 10, temperature=tau, kl=kl, include_self=include_self)
    assert abs(float(loss)) < 1e-6


def test_perturbations_of_the_optimum_never_decrease_the_loss():
    labels = torch.arange(24) % 6
    optimum = collapsed(labels, 6)
    floor = float(gsa_loss(optimum, labels, 6, temperature=0.1))
    for seed in range(200):
        step = 10 ** (-3 * seed / 200) * gaussian(*optimum.shape, seed=seed)
        perturbed = float(gsa_loss(optimum + step, labels, 6, temperature=0.1))
        assert perturbed > floor - 1e-7
        if seed < 100:
            assert perturbed > 1e-4


@PROPERTY
@given(seed=st.integers(0, 1000), tau=st.sampled_from(TAUS))
def test_loss_is_positive_away_from_the_optimum(seed, tau):
    assert gsa_loss(gaussian(20, 16, seed=seed), torch.arange(20) % 5, 5, temperature=tau) > 1e-3


@PROPERTY
@given(seed=st.integers(0, 1000), exponent=st.floats(-3, 3))
def test_only_directions_of_features_count(seed, exponent):
    features, labels = gaussian(12, 16, seed=seed), torch.arange(12) % 4
    scale = torch.logspace(-exponent, exponent, 12)[:, None]
    assert torch.allclose(gsa_loss(features * scale, labels, 4), gsa_loss(features, labels, 4), rtol=1e-4)


@pytest.mark.parametrize(
    ("tau", "orthogonal", "identical"),
    [
        (0.07, 1.675e-5, 11.155319),
        (0.1, 6.746e-4, 6.870106),
        (0.5, 3.517e-3, 0.225842),
        (1.0, 6.138e-4, 0.049211),
    ],
)
@pytest.mark.parametrize("dim", [16, 512])
def test_reference_values_of_collapsed_and_of_identical_features(tau, orthogonal, identical, dim):
    assert closed_form(COUNTS, 1.0, 0.0, tau) == pytest.approx(orthogonal, rel=1e-3)
    assert closed_form(COUNTS, 1.0, 1.0, tau) == pytest.approx(identical, abs=1e-6)
    apart = torch.eye(10, dim)[LABELS]
    assert float(gsa_loss(apart, LABELS, 10, temperature=tau)) == pytest.approx(orthogonal, rel=2e-3, abs=3e-7)
    alike = torch.ones(len(LABELS), dim)
    assert float(gsa_loss(alike, LABELS, 10, temperature=tau)) == pytest.approx(identical, rel=1e-5)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("counts", [(1, 1), (1, 9), (3, 3, 3), (100, 1)])
def test_duplicated_rows_act_through_the_softmax_only(tau, counts):
    """Orthogonal collapsed classes: the closed form averages classes, however many rows each has."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    loss = gsa_loss(torch.eye(8)[labels], labels, 10, temperature=tau)
    assert float(loss) == pytest.approx(closed_form(counts, 1.0, 0.0, tau), rel=1e-3, abs=1e-6)


def test_a_class_of_one_weighs_as_much_as_a_class_of_a_hundred():
    labels = torch.tensor([0] * 100 + [1])
    features = gaussian(101, 8)
    crowd = gsa_loss(features, labels, 5, class_balanced=False) * 101  # the plain mean is the sum of rows over 101
    single_row = _row_loss(features, labels, row=100)
    balanced = 0.5 * (float(crowd) - single_row) / 100 + 0.5 * single_row
    assert float(gsa_loss(features, labels, 5)) == pytest.approx(balanced, rel=1e-4)


def _row_loss(features, labels, row, num_classes=5, tau=0.07):
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    student = (unit @ unit[row] / tau).log_softmax(0)
    target = torch.where(labels == labels[row], 1.0, -1 / (num_classes - 1)).double()
    return float((student.exp() * (student - (target / tau).log_softmax(0))).sum())


@pytest.mark.parametrize("kl", ["FP", "PF", "sym"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_loss_equals_the_double_loop_of_the_equations(kl, include_self, tau):
    features, labels = (
        gaussian(17, 6, seed=3),
        torch.tensor([0, 0, 0, 1, 1, 2, 4, 4, 4, 4, 6, 6, 5, 0, 2, 2, 9]),
    )
    expected = double_loop(features, labels, 10, tau, kl=kl, include_self=include_self)
    loss = gsa_loss(features, labels, 10, temperature=tau, kl=kl, include_self=include_self)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_published_direction_takes_expectations_under_the_features():
    features, labels = gaussian(9, 4, seed=8), torch.arange(9) % 3
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    f = (unit @ unit.T / 0.5).softmax(dim=1)
    p = (torch.where(labels[:, None] == labels, 1.0, -0.5).double() / 0.5).softmax(dim=1)
    features_first = (f * (f.log() - p.log())).sum(dim=1).mean()
    prototypes_first = (p * (p.log() - f.log())).sum(dim=1).mean()
    assert abs(features_first - prototypes_first) > 1e-2
    assert float(gsa_loss(features, labels, 3, temperature=0.5)) == pytest.approx(float(features_first), rel=1e-5)
    reverse = gsa_loss(features, labels, 3, temperature=0.5, kl="PF")
    assert float(reverse) == pytest.approx(float(prototypes_first), rel=1e-5)


@pytest.mark.parametrize("include_self", [True, False])
def test_a_batch_of_one_has_no_loss(include_self):
    assert gsa_loss(gaussian(1, 8), torch.tensor([3]), 10, include_self=include_self) == 0.0


def test_a_batch_of_one_class_is_drawn_to_the_uniform_distribution():
    features = gaussian(7, 5)
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    f = (unit @ unit.T / 0.5).softmax(dim=1)
    expected = (f * (f.log() + math.log(7))).sum(dim=1).mean()
    loss = gsa_loss(features, torch.full((7,), 2), 10, temperature=0.5)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_the_target_depends_on_all_seen_classes_not_on_those_in_the_batch():
    features, labels = torch.eye(4), torch.tensor([0, 1, 0, 1])
    few, many = (float(gsa_loss(features, labels, n, temperature=0.5)) for n in (2, 100))
    assert few == pytest.approx(double_loop(features, labels, 2, 0.5), rel=1e-5)
    assert many == pytest.approx(double_loop(features, labels, 100, 0.5), rel=1e-5)
    assert few > many


def test_cosines_of_an_etf_given_as_a_matrix_change_nothing():
    features, labels = gaussian(10, 12), torch.arange(10) % 5
    w = simplex_etf(6, 12, seed=0)
    given_as_matrix = gsa_loss(features, labels, 6, prototype_cosines=w.T @ w)
    assert float(given_as_matrix) == pytest.approx(float(gsa_loss(features, labels, 6)), rel=1e-4)


def test_gradient_flows_through_both_features_of_a_pair():
    features, labels = gaussian(6, 4).double(), torch.arange(6) % 3
    leaf = features.float().requires_grad_()
    gsa_loss(leaf, labels, 3, temperature=0.5).backward()
    for index in [(0, 0), (3, 2), (5, 1)]:
        up, down = features.clone(), features.clone()
        up[index] += 1e-4
        down[index] -= 1e-4
        slope = (double_loop(up, labels, 3, 0.5) - double_loop(down, labels, 3, 0.5)) / 2e-4
        assert float(leaf.grad[index]) == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_no_gradient_reaches_prototypes():
    features, labels = gaussian(8, 12).requires_grad_(), torch.arange(8) % 4
    prototypes = simplex_etf(4, 12, seed=0).requires_grad_()
    gsa_loss(features, labels, 4, prototype_cosines=prototypes.T @ prototypes).backward()
    assert features.grad.abs().max() > 0
    assert prototypes.grad is None or prototypes.grad.abs().max() == 0


def test_a_dead_feature_gives_a_finite_loss():
    features = gaussian(6, 4)
    features[2] = 0.0
    assert torch.isfinite(gsa_loss(features, torch.arange(6) % 3, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_compared_in_single_precision(dtype):
    features, labels = gaussian(10, 16).to(dtype), torch.arange(10) % 4
    loss = gsa_loss(features, labels, 4)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(double_loop(features, labels, 4, 0.07), rel=1e-4)
