"""Figures 5 to 8 from results that are known: means, deviations, published values, and what is said about them."""

from __future__ import annotations

import math

import pytest
from figure_toys import failed, outcome, row_of

from fedfeat.core.errors import FedfeatError
from fedfeat_reproduction.figures import FIGURES, Finding, Numbers
from fedfeat_reproduction.figures.curves import METHODS
from fedfeat_reproduction.figures.experiments import CIFAR10, configured, narrowed

GAIN = {"fedcbdr+feat": 10.0, "refed+feat": 5.0, "fedcbdr": 0.0, "refed": -5.0}


def verdict(numbers: Numbers, name: str, words: str) -> Finding:
    (finding,) = [f for f in FIGURES[name].findings(numbers) if words in f.claim]
    return finding


def test_curves_are_means_over_seeds_with_published_ends() -> None:
    configs = [configured(CIFAR10, m, seed, quick=False) for m in METHODS for seed in (0, 1)]
    runs = [outcome(c, [90 + c.seed, 80, 70, 60, 50 + GAIN[c.method] + 4 * c.seed]) for c in configs]
    numbers = FIGURES["figure-5"].measure(runs)
    assert len(numbers.rows) == 4 * 5
    last = row_of(numbers, method="fedcbdr+feat", task=5)
    assert (last["accuracy"], last["seeds"], last["published"]) == (62.0, 2, 70.19)
    assert last["std"] == pytest.approx(4 / math.sqrt(2))
    assert row_of(numbers, method="fedcbdr+feat", task=4)["published"] is None
    assert [r["method"] for r in numbers.where(task=1)] == list(METHODS)
    above = verdict(numbers, "figure-5", "above their bases")
    assert not above.holds  # equal until the last task
    assert above.seen.startswith("above at 2 of 10")
    declines = verdict(numbers, "figure-5", "declines least")
    assert declines.holds
    assert "FEAT_F 28.5, FEAT_R 33.5, FedCBDR 38.5, Re-Fed+ 43.5" in declines.seen


def test_one_failed_method_does_not_stop_the_others() -> None:
    configs = FIGURES["figure-5"].configs(True, (0,))
    runs = [failed(c) if c.method == "refed" else outcome(c, [50.0 + GAIN[c.method]] * 5) for c in configs]
    numbers = FIGURES["figure-5"].measure(runs)
    assert numbers.values("method") == list(METHODS[:3])
    assert verdict(numbers, "figure-5", "above their bases").seen.startswith("above at 5 of 5")
    FIGURES["figure-5"].draw(numbers)


@pytest.mark.parametrize(("slope", "holds"), [(3.0, True), (-3.0, False)])
def test_budgets_and_who_gains_more_from_them(slope: float, holds: bool) -> None:
    configs = FIGURES["figure-6"].configs(False, (2023,))
    runs = []
    for c in configs:
        rises = slope * c.scenario.budget / 100 if c.method == "fedcbdr+feat" else 0.0
        runs.append(outcome(c, [40 + GAIN[c.method] + rises]))
    numbers = FIGURES["figure-6"].measure(runs)
    assert numbers.values("data") == ["cifar10", "cifar100", "tiny-imagenet"]
    row = row_of(numbers, data="cifar10", method="fedcbdr+feat", budget=450)
    assert row["accuracy"] == pytest.approx(50 + 4.5 * slope)
    assert [r["published"] for r in numbers.where(data="cifar10", method="fedcbdr")] == [None, 61.77, None]
    verdicts = [f for f in FIGURES["figure-6"].findings(numbers) if "gains more" in f.claim]
    assert [f.holds for f in verdicts] == [holds] * 3


@pytest.mark.parametrize(("gains", "holds"), [((1, 4, 3, 2), True), ((1, 2, 3, 4), False)])
def test_local_epochs_and_whether_the_gain_grows(gains: tuple[int, ...], holds: bool) -> None:
    by_epochs = dict(zip((1, 2, 5, 10), gains, strict=True))
    runs = [
        outcome(c, [50.0 + by_epochs[c.train.local_epochs] * ("feat" in c.method)])
        for c in FIGURES["figure-8"].configs(True, (1,))
    ]
    numbers = FIGURES["figure-8"].measure(runs)
    assert [r["epochs"] for r in numbers.where(method="refed")] == [1, 2, 5, 10]
    assert verdict(numbers, "figure-8", "above their bases").holds
    assert verdict(numbers, "figure-8", "does not simply grow").holds is holds


def test_sensitivity_holds_one_setting_and_varies_two() -> None:
    from fedfeat_reproduction.figures.sensitivity import _groups

    runs = []
    for c in FIGURES["figure-7"].configs(False, (2023,)):
        if c.method == "fedcbdr":
            runs.append(outcome(c, [60.0]))
            continue
        feat = c.to_table()["feat"]
        runs.append(outcome(c, [70 + 10 * feat["gsa"]["lambda"] + feat["gsa"]["tau"]]))
    numbers = FIGURES["figure-7"].measure(runs)
    assert len(numbers.rows) == 19
    assert {len(group) for group in _groups(numbers, "lambda").values()} == {6}
    assert {len(group) for group in _groups(numbers, "tau").values()} == {9}
    usual = row_of(numbers, **{"lambda": 0.1, "rho": 0.9, "tau": 0.07})
    assert (usual["accuracy"], usual["published"]) == (pytest.approx(71.07), 70.19)
    assert [r["published"] for r in numbers.rows].count(70.19) == 1
    assert row_of(numbers, method="fedcbdr")["published"] == 61.77
    assert verdict(numbers, "figure-7", "above FedCBDR").holds
    assert not verdict(numbers, "figure-7", "lambda changes little").holds  # medians 70.8 to 75.3
    rho = verdict(numbers, "figure-7", "rho changes little")
    assert rho.holds
    assert "no effect at all" in rho.seen
    FIGURES["figure-7"].draw(numbers)


def claims(name: str, numbers: Numbers) -> list[str]:
    return [finding.claim for finding in FIGURES[name].findings(numbers)]


@pytest.mark.parametrize("name", ["figure-5", "figure-6", "figure-8"])
def test_nothing_is_said_of_one_method_alone(name: str) -> None:
    for method in METHODS:
        configs = narrowed(FIGURES[name].configs(True, (1,)), method)
        numbers = FIGURES[name].measure([outcome(c, [60.0, 50.0]) for c in configs])
        assert claims(name, numbers) == []
        FIGURES[name].draw(numbers)


def test_nothing_is_said_of_one_point() -> None:
    epochs = [c for c in FIGURES["figure-8"].configs(True, (1,)) if c.train.local_epochs == 5]
    numbers = FIGURES["figure-8"].measure([outcome(c, [50.0 + GAIN[c.method]]) for c in epochs])
    assert claims("figure-8", numbers) == ["FEAT_F and FEAT_R are above their bases everywhere"]
    tasks = [outcome(c, [50.0 + GAIN[c.method]]) for c in FIGURES["figure-5"].configs(True, (1,))]
    assert not any("declines" in claim for claim in claims("figure-5", FIGURES["figure-5"].measure(tasks)))
    usual = [c for c in FIGURES["figure-7"].configs(True, (1,)) if c.method == "fedcbdr+feat"][:1]
    numbers = FIGURES["figure-7"].measure([outcome(c, [50.0]) for c in usual])
    assert claims("figure-7", numbers) == []
    FIGURES["figure-7"].draw(numbers)


def test_sensitivity_needs_feat() -> None:
    runs = [outcome(c, [60.0]) if c.method == "fedcbdr" else failed(c) for c in FIGURES["figure-7"].configs(True, (1,))]
    with pytest.raises(FedfeatError, match=r"no run of fedcbdr\+feat has finished: the disk is full"):
        FIGURES["figure-7"].measure(runs)


def test_a_single_seed_has_no_deviation_and_is_drawn() -> None:
    configs = [configured(CIFAR10, m, 0, quick=False) for m in METHODS]
    numbers = FIGURES["figure-5"].measure([outcome(c, [90, 80, 70, 60, 50]) for c in configs])
    assert {row["std"] for row in numbers.rows} == {None}
    FIGURES["figure-5"].draw(numbers)
