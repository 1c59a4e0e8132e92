"""Records sorted into the paper's cells: which run tells which figure, and what is left out."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import pytest
from paper_records import MakeRecord

from fedfeat.config.config import parse_config
from fedfeat.config.presets import Cell
from fedfeat.config.renamed import BEFORE
from fedfeat.core.settings import flatten
from fedfeat.runs.identity import deciding_settings
from fedfeat_reproduction.choices import answers, changes_in, find_variations, read_choices
from fedfeat_reproduction.page import changes_text
from fedfeat_reproduction.records import Record, read_records
from fedfeat_reproduction.render import rows_csv, rows_latex, rows_markdown
from fedfeat_reproduction.results import RecordIndex, SeedMean, TableRow, setting_of, with_other_forms
from fedfeat_reproduction.sources import FigureSource, can_calibrate, sources, trained_as
from fedfeat_reproduction.tables import MAIN, TABLES, PaperEntry, Value
from toy_runs import run_toy

CELL = Cell("cifar10", 5, 0.5)
ROOT = Path(__file__).parents[2]


def entry(method: str, **changes: object) -> PaperEntry:
    return PaperEntry("a row", method, CELL, Value(70.0, 1.0), **changes)  # type: ignore[arg-type]


def test_sources_of_a_figure() -> None:
    assert sources("fedewc") == [FigureSource("fedewc", "corrected")]
    assert sources("fedcbdr") == [
        FigureSource("fedcbdr", "corrected"),
        FigureSource("fedcbdr+calibrate", "before calibration", held_out=True),
    ]
    assert sources("fedcbdr+etf+gsa") == [
        FigureSource("fedcbdr+etf+gsa", "corrected"),
        FigureSource("fedcbdr+feat", "plain"),
        FigureSource("fedcbdr+etf+gsa+calibrate", "before calibration", held_out=True),
        FigureSource("fedcbdr+feat+calibrate", "plain", held_out=True),
    ]
    assert trained_as("fedcbdr+etf") == "fedcbdr+etf+egc"
    assert trained_as("fedcbdr+etf+egc") == "fedcbdr+etf+egc"
    assert trained_as("fedcbdr+feat") == "fedcbdr+feat"
    assert can_calibrate("refed+feat")
    assert not can_calibrate("fedewc")
    assert not can_calibrate("fedcbdr+calibrate")


@pytest.mark.parametrize("method", ["fedcbdr+etf+gsa", "fedcbdr+etf"])
def test_a_run_with_correction_really_gives_the_figure_without(method: str, tmp_path: Path) -> None:
    alone = run_toy(tmp_path, method)
    richer = run_toy(tmp_path, trained_as(method))
    assert alone.weights == richer.weights
    assert richer.result["accuracy_matrix_uncorrected"] == alone.result["accuracy_matrix"]


def test_mean_and_spread_over_seeds(make_record: MakeRecord) -> None:
    records = [make_record("fedcbdr", value, seed=seed) for seed, value in ((2023, 60.0), (2024, 63.0))]
    line = RecordIndex(records).row(entry("fedcbdr"))
    assert line.ours is not None
    assert line.ours.values == (60.0, 63.0)
    assert line.ours.mean == 61.5
    assert line.ours.std == pytest.approx(math.sqrt(4.5))
    assert line.difference == -8.5
    assert line.calibrated is None
    assert line.calibrated_difference is None


def test_one_seed_has_no_spread_and_the_same_seed_counts_once(make_record: MakeRecord) -> None:
    index = RecordIndex([make_record("fedcbdr", 60.0), make_record("fedcbdr", 61.0)])
    ours = index.row(entry("fedcbdr")).ours
    assert ours is not None
    assert ours.values == (60.0,)
    assert ours.std is None


def test_a_calibrated_run_fills_both_columns_and_says_so(make_record: MakeRecord) -> None:
    kept = make_record("fedcbdr+feat+calibrate", 68.0, plain=57.0, variants={"before calibration": 65.0})
    line = RecordIndex([kept]).row(entry("fedcbdr+feat"))
    assert line.ours is not None
    assert (line.ours.values, line.ours.held_out) == ((65.0,), True)
    assert line.calibrated is not None
    assert (line.calibrated.values, line.calibrated.held_out) == ((68.0,), False)
    parts = RecordIndex([kept]).row(entry("fedcbdr+etf+gsa"))
    assert parts.ours is not None
    assert parts.ours.values == (57.0,)
    assert parts.calibrated is None


def test_a_run_of_its_own_goes_before_one_that_held_samples_back(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr+calibrate", 62.0, plain=46.0),
        make_record("fedcbdr+calibrate", 63.0, plain=47.0, seed=2024),
        make_record("fedcbdr", 50.0),
    ]
    ours = RecordIndex(records).row(entry("fedcbdr")).ours
    assert ours is not None
    assert (ours.values, ours.held_out) == ((50.0, 47.0), True)


SHORT_GRID = f"calibrate.linear_deltas={[i / 4 for i in range(41)]}"
ALONE = "feat.egc.tail_boost=false"


def test_changed_settings_have_figures_of_their_own(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr+feat", 50.0),
        make_record("fedcbdr+feat", 56.0, overrides=(ALONE,)),
        make_record("fedcbdr", 40.0),
    ]
    usual, varied = RecordIndex(records), RecordIndex(records, overrides=(ALONE,))
    assert usual.row(entry("fedcbdr+feat")).ours == SeedMean((50.0,))
    for index in (varied, usual.with_settings((ALONE,))):
        assert index.row(entry("fedcbdr+feat")).ours == SeedMean((56.0,))
        assert index.row(entry("fedcbdr")).ours == SeedMean((40.0,))  # a setting that it does not read is none
    assert usual.row(entry("fedcbdr+feat")).ours == SeedMean((50.0,))
    assert usual.with_settings(("train.rounds=20",)).row(entry("fedcbdr")).ours is None


def test_a_grid_for_the_other_classifier_is_no_setting(make_record: MakeRecord) -> None:
    with_frame = make_record("fedcbdr+feat+calibrate", 73.0, overrides=(SHORT_GRID,))
    assert RecordIndex([with_frame]).row(entry("fedcbdr+feat")).calibrated == SeedMean((73.0,))
    assert changes_in(with_frame, CELL) == {}
    linear = make_record("fedcbdr+calibrate", 66.0, overrides=(SHORT_GRID,))
    assert RecordIndex([linear]).row(entry("fedcbdr")).calibrated is None
    changed = changes_in(linear, CELL)
    assert list(changed) == ["calibrate.linear_deltas"]
    assert changes_text(changed, CELL, "fedcbdr+calibrate") == "`calibrate.linear_deltas = 0 ... 10`"


def test_a_run_with_somebodys_clip_counts_though_the_weights_are_not_here(make_record: MakeRecord) -> None:
    kept = make_record("fedcbdr", 60.0)
    clip = {"teacher": {"backend": "cache", "path": "/no/such/place/teacher.safetensors"}}
    config = {**kept.config, "method": "fedcbdr+clip2fl", "clip2fl": clip}
    with_clip = kept.model_copy(update={"method": "fedcbdr+clip2fl", "config": config})
    index = RecordIndex([with_clip])
    assert index.unreadable == []
    assert index.row(entry("fedcbdr+clip2fl")).ours == SeedMean((60.0,))
    assert changes_in(with_clip, CELL) == {}


def test_the_engine_is_no_setting_but_a_learning_rate_is(make_record: MakeRecord) -> None:
    other_engine = make_record("fedcbdr", 60.0, overrides=("engine.name=cuda", "engine.precision=bf16"))
    other_rate = make_record("fedcbdr", 61.0, seed=2024, overrides=("train.lr=0.01",))
    other_cell = make_record("fedcbdr", 62.0, seed=2025, cell=Cell("cifar10", 5, 1.0))
    ours = RecordIndex([other_engine, other_rate, other_cell]).row(entry("fedcbdr")).ours
    assert ours is not None
    assert ours.values == (60.0,)


def test_accuracy_on_one_task(make_record: MakeRecord) -> None:
    kept = make_record("fedcbdr+feat", 70.0, plain=50.0)
    lines = [RecordIndex([kept]).row(entry("fedcbdr+feat", task=task)) for task in (1, 5)]
    assert [line.ours.values for line in lines if line.ours] == [(66.0,), (70.0,)]
    without = RecordIndex([kept]).row(entry("fedcbdr+etf+gsa", task=5)).ours
    assert without is not None
    assert without.values == (50.0,)


def test_old_records_without_matrices_of_variants_tell_nothing_of_tasks(make_record: MakeRecord) -> None:
    kept = make_record("fedcbdr+feat+calibrate", 68.0, variants={"before calibration": 65.0})
    old = kept.model_copy(update={"accuracy_matrix_of_variants": {}})
    assert RecordIndex([old]).row(entry("fedcbdr+feat", task=1)).ours is None


def test_numbers_sent_are_counted_from_the_traffic(make_record: MakeRecord) -> None:
    asked = entry("fedcbdr+feat", measure="numbers sent")
    updates = 5 * 100 * 4  # clients, rounds, tasks after the first
    traffic = {
        "up/train/weights": 10**9,
        "up/train/samples": 4000,
        "up/train/loss.ce": 4000,
        "up/train/prior_head": 4 * updates,
        "up/train/prior_tail": 4 * updates,
        "up/leverage/mass": 77,
        "down/train/weights": 10**9,
    }
    line = RecordIndex([make_record("fedcbdr+feat", 70.0, traffic=traffic)]).row(asked)
    assert line.ours is not None
    assert line.ours.values == (2.0,)
    assert RecordIndex([make_record("fedcbdr+feat", 70.0)]).row(asked).ours is None


def test_a_record_this_version_does_not_understand_is_left_out_and_named(make_record: MakeRecord) -> None:
    odd = make_record("fedcbdr", 60.0)
    odd = odd.model_copy(update={"config": {**odd.config, "train": {"lr_of_tomorrow": 1}}})
    index = RecordIndex([odd, make_record("fedcbdr", 61.0)])
    assert len(index.unreadable) == 1
    assert "unknown key 'train.lr_of_tomorrow'" in index.unreadable[0]
    assert index.row(entry("fedcbdr")).ours is not None


def test_the_effect_of_a_choice_is_that_of_two_runs_that_differ_in_it_alone(make_record: MakeRecord) -> None:
    usual = make_record("fedcbdr+feat", 70.0, plain=60.0)
    varied = make_record("fedcbdr+feat", 66.0, plain=57.0, overrides=("train.momentum=0",))
    raw = ("train.momentum=0", "feat.logits=raw")
    both = make_record("fedcbdr+feat", 60.0, overrides=raw)
    alone = make_record("fedcbdr", 50.0, overrides=("train.momentum=0",))
    elsewhere = make_record("fedcbdr+feat", 65.0, overrides=("train.schedule=constant",), images="others")
    found = find_variations([usual, varied, both, alone, elsewhere])
    assert [(dict(v.changes), dict(v.given)) for v in found] == [
        ({"train.momentum": 0.0}, {}),
        ({"feat.logits": "raw"}, {"train.momentum": 0.0}),
    ]
    assert found[1].effect("corrected") == -6.0
    momentum = next(c for c in read_choices() if c.title == "Momentum")
    assert answers(momentum, found) == found[:1]
    assert found[0].effect("corrected") == -4.0
    assert found[0].effect("plain") == -3.0


def test_choices_name_settings_that_exist(make_record: MakeRecord) -> None:
    kept: Record = make_record("fedcbdr+feat", 70.0, overrides=("feat.etf.max_classes=10",))
    for choice in read_choices():
        for key in choice.keys:
            table, *names = key.split(".")
            value = kept.config[table]
            for name in names:
                value = value[name]


def lines(make_record: MakeRecord) -> list[TableRow]:
    kept = make_record("fedcbdr+feat+calibrate", 68.004, plain=57.0, variants={"before calibration": 65.0})
    index = RecordIndex([kept])
    return [index.row(entry("fedcbdr+feat")), index.row(PaperEntry("FEAT_R", "refed+feat", CELL, None))]


def test_markdown(make_record: MakeRecord) -> None:
    text = rows_markdown(lines(make_record))
    assert (
        "| cifar10-5-beta0.5-k5 | a row | `fedcbdr+feat` | 70.00 ± 1.0 | 65.00\\* | 1 | -5.00 | 68.00 | -2.00 |" in text
    )
    assert "| cifar10-5-beta0.5-k5 | FEAT_R | `refed+feat` |  |  |  |  |  |  |" in text
    assert text.endswith("\\* trained without the exemplars that its calibration held out\n")
    assert rows_markdown(lines(make_record), setting=False).startswith("| row | method |")


def test_csv_has_full_precision(make_record: MakeRecord) -> None:
    rows = list(csv.DictReader(rows_csv(lines(make_record)).splitlines()))
    assert rows[0]["calibrated_mean"] == "68.004"
    assert rows[0]["ours_seeds"] == "1"
    assert rows[0]["held_back"] == "True"
    assert rows[1]["published"] == rows[1]["ours_mean"] == ""


def test_latex_is_escaped(make_record: MakeRecord) -> None:
    text = rows_latex(lines(make_record), "50 % of a_b")
    assert r"\caption{50 \% of a\_b}" in text
    assert r"70.00 $\pm$ 1.0 & 65.00* & 1 & $-5.00$ & 68.00 & $-2.00$ \\" in text
    assert text.count(r"\\") == 4
    assert r"FEAT\_R" in text


def test_the_first_records_are_still_read_and_give_the_figures_that_they_gave(tmp_path: Path) -> None:
    """``shown.json`` holds what version 0.1.0 printed of the records of that time."""
    shown = json.loads(Path(__file__).with_name("shown.json").read_text())
    for name in shown["records"]:
        shutil.copy(ROOT / "results" / name, tmp_path)
    records = read_records(tmp_path)
    assert len(records) == len(shown["records"])
    index = RecordIndex(records, earlier=True)
    assert index.unreadable == []
    for name, expected in shown["tables"].items():
        rows = [index.row(entry) for entry in TABLES[name].entries]
        rows = with_other_forms(rows, index) if name == MAIN else rows
        printed = csv.DictReader(rows_csv([row for row in rows if row.ours or row.calibrated]).splitlines())
        assert [{k: v for k, v in row.items() if v and k != "earlier"} for row in printed] == expected


def test_no_record_of_before_gives_a_figure_under_what_is_done_today() -> None:
    """A record is as old as the settings that it does not have; it is read with what was done then."""
    old = [kept for kept in read_records(ROOT / "results") if not set(BEFORE) & set(flatten(kept.config))]
    assert old
    for kept in old:
        read = flatten(deciding_settings(kept.parsed_config()))
        assert {key: read[key] for key in BEFORE if key in read} == {k: v for k, v in BEFORE.items() if k in read}
    main = [entry for entry in TABLES[MAIN].entries if entry.method == "fedcbdr+feat"]
    figures = [figure for entry in main if (figure := RecordIndex(old, earlier=True).row(entry).ours)]
    assert figures
    assert all(figure.earlier for figure in figures)
    assert not any(RecordIndex(old).row(entry).ours for entry in main)


@pytest.mark.parametrize(
    ("method", "change", "other"),
    [
        ("fedcbdr+etf+balanced+distil", "feat.egc.prior_order=kept", False),
        ("fedcbdr+etf+balanced+distil", "feat.gsa.tau=0.5", False),
        ("fedcbdr+etf+balanced+distil", "fedcbdr.scale_logits=false", False),
        ("fedcbdr+balanced", "fedcbdr.scale_logits=false", False),
        ("fedcbdr+etf+gsa", "feat.gsa.tau=0.5", True),
        ("fedcbdr+feat", "feat.egc.prior_order=kept", True),
        ("fedcbdr+feat", "fedcbdr.scale_logits=false", False),
        ("fedcbdr+feat", "feat.keep_tts=true", True),
        ("fedcbdr", "fedcbdr.scale_logits=false", True),
    ],
)
def test_settings_that_a_composition_does_not_read_make_no_other_experiment(
    method: str, change: str, other: bool
) -> None:
    usual, changed = ({"method": method}, ()), ({"method": method}, (change,))
    assert (setting_of(parse_config(*usual)) != setting_of(parse_config(*changed))) is other


def test_undivided_logits_are_another_experiment_where_fedcbdrs_loss_stays() -> None:
    kept = {"method": "fedcbdr+feat", "feat": {"keep_tts": True}}
    assert setting_of(parse_config(kept)) != setting_of(parse_config(kept, ("fedcbdr.scale_logits=false",)))


def test_figures_of_the_earlier_settings_stand_in_until_there_are_others(make_record: MakeRecord) -> None:
    earlier = make_record("fedcbdr+feat", 60.0, overrides=("feat.egc.prior_order=kept",))
    today = make_record("fedcbdr+feat", 65.0, seed=2024)
    asked = entry("fedcbdr+feat")
    assert RecordIndex([earlier]).row(asked).ours is None
    found = RecordIndex([earlier], earlier=True).row(asked)
    assert found.ours == SeedMean((60.0,), earlier=True)
    assert "60.00†" in rows_markdown([found])
    assert "† with the earlier settings" in rows_markdown([found])
    assert RecordIndex([earlier, today], earlier=True).row(asked).ours == SeedMean((65.0,))
