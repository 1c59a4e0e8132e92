"""Open choices: every other answer is a valid experiment, and its effect is that of paired runs alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_records import MakeRecord

from fedfeat.config.config import differing_keys, make_config
from fedfeat.core.errors import ConfigError, FedfeatError
from fedfeat.runs.identity import deciding_settings, folder_name
from fedfeat_reproduction.choices import CELL, METHOD, Alternative, ChoiceRuns, choose_alternatives, read_choices
from fedfeat_reproduction.effects import (
    Accuracies,
    Effect,
    Pair,
    accuracies,
    effect_of,
    find_pairs,
    indices,
    within_spread,
)
from fedfeat_reproduction.experiments import TableRuns, settings
from fedfeat_reproduction.records import Record
from fedfeat_reproduction.results import SeedMean
from fedfeat_reproduction.sources import CALIBRATE

REAL, QUICK = ChoiceRuns(), ChoiceRuns(quick=True)
ALTERNATIVES = choose_alternatives()
MOMENTUM = choose_alternatives("momentum")[0]


def name(alternative: Alternative) -> str:
    return ",".join(alternative.overrides)


def effect(*differences: float) -> Effect:
    pairs = [
        Pair(seed=i, usual=Accuracies(plain=50, own=50), varied=Accuracies(plain=50 + d, own=50))
        for i, d in enumerate(differences)
    ]
    return Effect(choice="momentum", changes={}, method=METHOD, pairs=pairs)


@pytest.mark.parametrize("alternative", ALTERNATIVES, ids=name)
def test_an_alternative_differs_from_the_usual_run_in_its_keys_alone(alternative: Alternative) -> None:
    assert set(alternative.changes) <= set(alternative.choice.keys)
    about_augmentation = set(alternative.changes) in ({"data.augment"}, {"feat.egc.prior_transform"})
    for protocol in (REAL, QUICK, ChoiceRuns(overrides=["train.rounds=7"])):
        usual, varied = protocol.usual(alternative.choice.method, 2024), protocol.varied(alternative, 2024)
        assert differing_keys(deciding_settings(usual), deciding_settings(varied)) == sorted(alternative.changes)
        assert (varied.seed, varied.method) == (2024, alternative.choice.method)
        expected = "images of digits are not augmented" if about_augmentation and protocol.quick else None
        assert protocol.objection(alternative) == expected


def test_every_choice_has_a_name_an_alternative_and_a_method_that_calibrates() -> None:
    choices = read_choices()
    assert len({choice.name for choice in choices}) == len(choices)
    for choice in choices:
        assert re.fullmatch(r"[a-z-]+", choice.name)
        assert choice.instead
        assert choice.method.endswith(CALIBRATE)


def test_the_usual_run_is_the_one_of_the_main_table() -> None:
    table = make_config(settings(CELL, TableRuns(calibrate=True).method("fedcbdr+feat"), 2024))
    assert folder_name(REAL.usual(METHOD, 2024)) == folder_name(table)


def test_quick_runs_answer_as_ours_do() -> None:
    quick, real = QUICK.usual(METHOD), REAL.usual(METHOD)
    keys = {key for choice in read_choices() for key in choice.keys}
    assert not keys & set(differing_keys(deciding_settings(quick), deciding_settings(real)))


def test_only_names_choices() -> None:
    assert [a.choice.name for a in choose_alternatives("logits, growth")] == ["logits", "growth", "growth"]
    with pytest.raises(FedfeatError, match="did you mean 'momentum'"):
        choose_alternatives("mometum")


def test_an_alternative_that_changes_nothing_is_objected_to() -> None:
    same = ChoiceRuns(overrides=["train.momentum=0.0"])
    assert same.objection(MOMENTUM) == "the usual run does so already, or its method does not read this"
    logits = choose_alternatives("logits")[0]
    assert ChoiceRuns(overrides=["method=fedcbdr+calibrate"]).objection(logits) == same.objection(MOMENTUM)
    assert ChoiceRuns(overrides=["method=refed+feat+calibrate"]).objection(logits) is None
    impossible = Alternative(MOMENTUM.choice, {"train.momentum": 2})
    assert "train.momentum: input should be less than 1" in (REAL.objection(impossible) or "")


def test_a_usual_run_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.lr: input should be greater than 0"):
        ChoiceRuns(overrides=["train.lr=-1"]).objection(MOMENTUM)


@pytest.fixture
def usual(make_record: MakeRecord) -> Record:
    return make_record(METHOD, 75.0, plain=60.0, variants={"before calibration": 70.0})


def test_what_differs_in_something_else_is_not_paired(usual: Record, make_record: MakeRecord) -> None:
    def varied(*more: str, **changes: object) -> Record:
        return make_record(METHOD, 70.0, overrides=("train.momentum=0", *more), **changes)

    others = [
        varied(seed=2024),
        varied("feat.logits=raw"),
        varied("train.rounds=20"),
        varied("engine.name=cuda", "engine.precision=bf16"),
        varied(images="others"),
        make_record(METHOD.removesuffix(CALIBRATE), 70.0, overrides=("train.momentum=0",)),
    ]
    assert find_pairs(MOMENTUM, REAL, indices([usual, *others])) == {}
    right = varied()
    assert find_pairs(MOMENTUM, REAL, indices([*others, right, usual])) == {2023: (usual, right)}


def test_a_changed_protocol_compares_runs_that_share_it(usual: Record, make_record: MakeRecord) -> None:
    short = make_record(METHOD, 50.0, overrides=("train.rounds=20",))
    short_varied = make_record(METHOD, 40.0, overrides=("train.rounds=20", "train.momentum=0"))
    varied = make_record(METHOD, 70.0, overrides=("train.momentum=0",))
    among = indices([usual, short_varied, varied])
    protocol = ChoiceRuns(overrides=["train.rounds=20"])
    assert find_pairs(MOMENTUM, protocol, among) == {}
    assert find_pairs(MOMENTUM, REAL, among) == {2023: (usual, varied)}
    assert find_pairs(MOMENTUM, protocol, indices([short, usual, short_varied])) == {2023: (short, short_varied)}


def test_an_effect_has_three_predictions_and_the_exact_mean_and_spread(make_record: MakeRecord) -> None:
    def run(seed: int, plain: float, own: float, calibrated: float, *overrides: str) -> Record:
        variants = {"before calibration": own}
        return make_record(METHOD, calibrated, plain=plain, variants=variants, seed=seed, overrides=overrides)

    records = [
        run(2023, 60.0, 70.0, 75.0),
        run(2024, 50.0, 71.0, 76.0),
        run(2025, 55.0, 72.0, 77.0),
        run(2024, 48.0, 71.0, 75.5, "train.momentum=0"),
        run(2023, 55.0, 71.0, 75.5, "train.momentum=0"),
    ]
    found = effect_of(MOMENTUM, REAL, find_pairs(MOMENTUM, REAL, indices(records)))
    assert [pair.seed for pair in found.pairs] == [2023, 2024]  # 2025 has no varied run
    assert found.change("plain") == SeedMean((-5.0, -2.0))
    assert found.change("own") == SeedMean((1.0, 0.0))
    assert found.change("calibrated") == SeedMean((0.5, -0.5))
    plain = found.change("plain")
    assert plain is not None
    assert plain.mean == -3.5
    assert plain.std == pytest.approx(4.5**0.5)
    assert found.usual("plain") == SeedMean((60.0, 50.0))


def test_a_method_without_calibration_has_two_predictions(make_record: MakeRecord) -> None:
    assert accuracies(make_record("fedcbdr+feat", 70.0, plain=60.0)) == Accuracies(plain=60.0, own=70.0)
    assert effect(1.0).change("calibrated") is None


@given(
    st.lists(st.tuples(st.floats(30, 60), st.floats(-20, 20)), min_size=2, max_size=6),
    st.floats(-10, 10),
)
def test_what_both_runs_of_a_seed_share_does_not_count(runs: list[tuple[float, float]], shift: float) -> None:
    """A lucky seed moves both of its runs; the mean and the spread of differences must not see it."""

    def changed(shifts: list[float]) -> SeedMean:
        pairs = [
            Pair(seed=i, usual=Accuracies(plain=u + s, own=0), varied=Accuracies(plain=u + d + s, own=0))
            for i, ((u, d), s) in enumerate(zip(runs, shifts, strict=True))
        ]
        change = Effect(choice="", changes={}, method="", pairs=pairs).change("plain")
        assert change is not None
        return change

    still, moved = changed([0.0] * len(runs)), changed([shift * (i % 2) for i in range(len(runs))])
    assert moved.mean == pytest.approx(still.mean, abs=1e-9)
    assert moved.std == pytest.approx(still.std, abs=1e-6)


def test_within_the_spread_is_a_mean_no_larger_than_its_deviation() -> None:
    assert within_spread(SeedMean((-1.0, 3.0)))  # 1 ± 2.83
    assert not within_spread(SeedMean((-2.0, -3.0)))  # -2.5 ± 0.71
    assert within_spread(SeedMean((0.0, 0.0)))
    assert not within_spread(SeedMean((0.1,)))  # one seed has no spread to be within
