from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.geometry import egc_correct, simplex_etf
from fedfeat.geometry.calibration import Rule, calibrated, choose, count_right, sum_losses

GAMMAS, DELTAS = (0.0, 0.5, 1.0), (0.0, 0.1, 0.4)


def cosine_logits(count: int, classes: int, seed: int = 0) -> torch.Tensor:
    etf = simplex_etf(classes, 32, seed=1)
    features = torch.randn(count, 32, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(features, dim=1) @ etf


@pytest.mark.parametrize(("classes", "old"), [(10, 8), (10, 6), (20, 4), (11, 10)])
def test_full_strength_is_egc_and_none_is_the_plain_prediction(classes: int, old: int) -> None:
    z = cosine_logits(50, classes)
    egc = egc_correct(z, num_old=old, prior_head=0.001)
    assert torch.allclose(calibrated(z, egc, num_old=old, gamma=1.0, delta=0.0), egc, atol=1e-6)
    assert torch.equal(calibrated(z, egc, num_old=old, gamma=0.0, delta=0.0), z)


@pytest.mark.parametrize("gamma", [0.2, 0.7])
def test_the_strength_scales_the_gate(gamma: float) -> None:
    """The closed form: group means stay, contrasts are multiplied by 1 + gamma g and 1 - gamma g."""
    z, old = cosine_logits(40, 10), 8
    full = egc_correct(z, num_old=old, prior_head=0.001)
    tail, head = z[:, :old], z[:, old:]
    mean_tail, mean_head = tail.mean(dim=1, keepdim=True), head.mean(dim=1, keepdim=True)
    gate = 1 - (full[:, old:] - full[:, old:].mean(dim=1, keepdim=True)) / (head - mean_head)
    gate = gate[:, :1]
    expected = torch.cat(
        [
            mean_tail + (1 + gamma * gate) * (tail - mean_tail),
            mean_head + (1 - gamma * gate) * (head - mean_head) - 0.05,
        ],
        dim=1,
    )
    ours = calibrated(z, full, num_old=old, gamma=gamma, delta=0.05)
    assert torch.allclose(ours, expected, atol=1e-5)


def test_counting_agrees_with_predicting_at_every_grid_point() -> None:
    z, old = cosine_logits(200, 10, seed=3), 7
    corrected = egc_correct(z, num_old=old, prior_head=0.002)
    labels = torch.randint(0, 10, (200,), generator=torch.Generator().manual_seed(4))
    table = count_right(z, corrected, labels, num_old=old, gammas=GAMMAS, deltas=DELTAS)
    for row, gamma in enumerate(GAMMAS):
        for column, delta in enumerate(DELTAS):
            right = calibrated(z, corrected, num_old=old, gamma=gamma, delta=delta).argmax(dim=1) == labels
            assert table[row, column, 0] == right[labels < old].sum()
            assert table[row, column, 1] == right[labels >= old].sum()


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 60), seed=st.integers(0, 100))
def test_tables_add_up_however_samples_are_spread(cut: int, seed: int) -> None:
    z, old = cosine_logits(60, 6, seed=seed), 4
    labels = torch.randint(0, 6, (60,), generator=torch.Generator().manual_seed(seed))

    def count(part: slice) -> torch.Tensor:
        return count_right(z[part], z[part], labels[part], num_old=old, gammas=(0.0,), deltas=DELTAS)

    assert torch.equal(count(slice(None)), count(slice(cut, None)) + count(slice(0, cut)))


def test_a_set_whose_best_point_is_known() -> None:
    """One old sample loses by 0.2 to a new class, one new sample wins by 0.35: only delta in (0.2, 0.35) is right."""
    logits = torch.tensor([[0.5, 0.0, 0.7], [0.3, 0.0, 0.65]])
    labels = torch.tensor([0, 2])
    deltas = (0.0, 0.1, 0.25, 0.3, 0.4)
    table = count_right(logits, logits, labels, num_old=2, gammas=(0.0,), deltas=deltas)
    assert table[0].tolist() == [[0, 1], [0, 1], [1, 1], [1, 1], [1, 0]]
    choice = choose(table, (1, 1), num_old=2, num_new=1, gammas=(0.0,), deltas=deltas)
    assert choice == (0.0, 0.25), "among equals, the weakest"


def test_the_mix_of_held_out_samples_does_not_matter() -> None:
    """Ninety new and ten old samples: the point that is right on the old ones wins if old classes are many."""
    table = torch.tensor([[[2, 90], [9, 60]]])
    favours_old = choose(table, (10, 90), num_old=8, num_new=2, gammas=(0.0,), deltas=(0.0, 0.1))
    favours_new = choose(table, (10, 90), num_old=2, num_new=8, gammas=(0.0,), deltas=(0.0, 0.1))
    assert favours_old == (0.0, 0.1)
    assert favours_new == (0.0, 0.0)


def test_nothing_is_chosen_without_samples_of_both_sides() -> None:
    table = torch.zeros(1, 2, 2, dtype=torch.int32)
    assert choose(table, (0, 5), num_old=2, num_new=2, gammas=(0.0,), deltas=(0.0, 1.0)) is None
    assert choose(table, (5, 0), num_old=2, num_new=2, gammas=(0.0,), deltas=(0.0, 1.0)) is None
    table = torch.tensor([[[0, 0], [4, 4]]])
    grid = {"num_old": 2, "num_new": 2, "gammas": (0.0,), "deltas": (0.0, 1.0)}
    assert choose(table, (4, 5), **grid, least=5) is choose(table, (5, 4), **grid, least=5) is None
    assert choose(table, (5, 5), **grid, least=5) == (0.0, 1.0)


def test_a_model_that_favours_old_classes_is_corrected_the_other_way() -> None:
    """The new sample loses by 0.2 to an old class; the old one wins by 0.35."""
    logits = torch.tensor([[0.7, 0.0, 0.5], [0.65, 0.0, 0.3]])
    deltas = (-0.4, -0.3, -0.25, -0.1, 0.0, 0.1)
    table = count_right(logits, logits, torch.tensor([2, 0]), num_old=2, gammas=(0.0,), deltas=deltas)
    assert table[0].tolist() == [[0, 1], [1, 1], [1, 1], [1, 0], [1, 0], [1, 0]]
    assert choose(table, (1, 1), num_old=2, num_new=1, gammas=(0.0,), deltas=deltas) == (0.0, -0.25)


def test_no_correction_wins_among_equals_and_a_positive_offset_among_the_weakest() -> None:
    deltas = (-0.2, 0.0, 0.2)
    grid = {"num_old": 2, "num_new": 2, "gammas": (0.0, 1.0), "deltas": deltas}
    assert choose(torch.full((2, 3, 2), 3), (5, 5), **grid) == (0.0, 0.0)
    sides = torch.tensor([[[3, 3], [2, 2], [3, 3]], [[3, 3], [3, 3], [3, 3]]])
    assert choose(sides, (5, 5), **grid) == (0.0, 0.2)


def test_losses_are_those_of_the_calibrated_logits_in_their_units() -> None:
    """With two classes: log(1 + exp(s (z_other - z_own))), the offset on the new one."""
    logits, labels = torch.tensor([[0.5, 0.7], [0.3, 0.65]]), torch.tensor([0, 1])
    unit = torch.tensor([10.0, 2.0])
    table = sum_losses(logits, logits, labels, unit=unit, num_old=1, gammas=(0.0,), deltas=(-0.1, 0.0, 0.2))
    old = [math.log(1 + math.exp(10 * (0.2 - delta))) for delta in (-0.1, 0.0, 0.2)]
    new = [math.log(1 + math.exp(2 * (-0.35 + delta))) for delta in (-0.1, 0.0, 0.2)]
    assert table[0, :, 0].tolist() == pytest.approx(old, rel=1e-5)
    assert table[0, :, 1].tolist() == pytest.approx(new, rel=1e-5)


def test_losses_agree_with_cross_entropy_at_every_grid_point() -> None:
    z, old = cosine_logits(80, 10, seed=3), 7
    corrected = egc_correct(z, num_old=old, prior_head=0.002)
    labels = torch.randint(0, 10, (80,), generator=torch.Generator().manual_seed(4))
    deltas = (-0.3, *DELTAS)
    table = sum_losses(z, corrected, labels, unit=torch.full((80,), 16.0), num_old=old, gammas=GAMMAS, deltas=deltas)
    for row, gamma in enumerate(GAMMAS):
        for column, delta in enumerate(deltas):
            logits = 16 * calibrated(z, corrected, num_old=old, gamma=gamma, delta=delta)
            losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            both = [float(losses[labels < old].sum()), float(losses[labels >= old].sum())]
            assert table[row, column].tolist() == pytest.approx(both, rel=1e-4)


def test_the_rule_by_likelihood_takes_the_smallest_loss() -> None:
    table = torch.tensor([[[4.0, 1.0], [2.0, 2.0], [1.0, 9.0]]])
    grid = {"gammas": (0.0,), "deltas": (0.0, 0.1, 0.2), "rule": "likelihood"}
    assert choose(table, (2, 2), num_old=2, num_new=2, **grid) == (0.0, 0.1)
    assert choose(table, (2, 2), num_old=9, num_new=1, **grid) == (0.0, 0.2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), old=st.integers(1, 5), rule=st.sampled_from(["accuracy", "likelihood"]))
def test_the_choice_is_never_worse_on_the_held_out_samples_than_doing_nothing(seed: int, old: int, rule: Rule) -> None:
    z = cosine_logits(24, 6, seed=seed)
    corrected = egc_correct(z, num_old=old, prior_head=0.002) if old > 1 else z
    labels = torch.randint(0, 6, (24,), generator=torch.Generator().manual_seed(seed))
    labels[:2] = torch.tensor([0, 5])
    deltas = (-1.0, -0.1, *DELTAS)
    grid = {"num_old": old, "gammas": GAMMAS, "deltas": deltas}
    if rule == "accuracy":
        table = count_right(z, corrected, labels, **grid)
    else:
        table = sum_losses(z, corrected, labels, unit=torch.full((24,), 16.0), **grid)
    num = int((labels < old).sum())
    choice = choose(table, (num, 24 - num), num_new=6 - old, rule=rule, **grid)
    assert choice is not None

    def score(logits: torch.Tensor) -> float:
        good = (logits.argmax(dim=1) == labels).double()
        if rule == "likelihood":
            good = -torch.nn.functional.cross_entropy(16 * logits, labels, reduction="none").double()
        return float(old * good[labels < old].mean() + (6 - old) * good[labels >= old].mean()) / 6

    chosen = score(calibrated(z, corrected, num_old=old, gamma=choice.gamma, delta=choice.delta))
    assert chosen >= max(score(z), score(corrected)) - 1e-5
    if rule == "accuracy" and choice != (0.0, 0.0):
        assert chosen > score(z), "it is applied, and gains nothing"
