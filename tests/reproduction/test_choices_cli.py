"""``fedfeat paper run choices`` and ``show choices``, with real runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from paper_command import paper
from paper_records import MakeRecord

from fedfeat.core.errors import FedfeatError
from fedfeat_reproduction.effects import read_measured
from fedfeat_reproduction.records import write_record

pytestmark = pytest.mark.usefixtures("elsewhere")
SHORT = ("--quick", "--only", "momentum", "--set", "train.rounds=1", "--set", "scenario.tasks=2")


@pytest.mark.slow
def test_a_choice_is_run_once_shown_and_recorded(elsewhere: Path) -> None:
    first = paper("run", "choices", *SHORT, "--record", "quick.json")
    assert first.exit_code == 0
    assert "2 done now" in first.output
    results = [json.loads(p.read_text()) for p in elsewhere.glob("runs/paper-quick/*/result.json")]
    usual, varied = sorted(results, key=lambda r: -r["config"]["train"]["momentum"])
    assert [r["config"]["train"]["momentum"] for r in (usual, varied)] == [0.9, 0.0]
    again = paper("run", "choices", *SHORT)
    assert "2 done before" in again.output
    assert "done now" not in again.output

    shown = list(csv.DictReader(paper("show", "choices", *SHORT, "--format", "csv").stdout.splitlines()))
    assert [row["choice"] for row in shown] == ["momentum"]
    plain = varied["final_accuracy_uncorrected"] - usual["final_accuracy_uncorrected"]
    assert float(shown[0]["plain_effect"]) == plain
    own = [r["accuracy_of_variants"]["before calibration"][-1] for r in (usual, varied)]
    assert float(shown[0]["own_effect"]) == own[1] - own[0]
    assert float(shown[0]["calibrated_usual"]) == usual["final_accuracy"]
    assert f"{plain:+.2f}" in first.output

    kept = read_measured(elsewhere / "quick.json")
    assert kept is not None
    assert (kept.dataset, kept.rounds) == ("digits", 1)
    assert [(e.choice, len(e.pairs)) for e in kept.effects] == [("momentum", 1)]
    assert kept.effects[0].pairs[0].varied.plain == varied["final_accuracy_uncorrected"]


@pytest.mark.slow
def test_other_settings_of_the_same_folder_are_not_shown(elsewhere: Path) -> None:
    assert paper("run", "choices", *SHORT).exit_code == 0
    shown = list(csv.DictReader(paper("show", "choices", "--quick", "--format", "csv").stdout.splitlines()))
    assert len(shown) == 31
    assert {row["seeds"] for row in shown} == {"0"}


def test_show_says_what_is_left_out_and_list_names_it() -> None:
    shown = paper("show", "choices", "--quick", "--only", "augmentation,priors")
    assert "data.augment = none: images of digits are not augmented" in shown.stderr
    assert "feat.egc.prior = mean" in shown.stdout
    assert "no pair of runs yet" in shown.stdout
    line = next(line for line in paper("list").output.splitlines() if line.startswith("choices"))
    assert line.split()[1:3] == ["33", "0"]


def test_show_tells_of_pairs_that_share_another_setting(elsewhere: Path, make_record: MakeRecord) -> None:
    short = "train.rounds=20"
    for overrides in ((short,), (short, "train.momentum=0.0"), (short, 'train.schedule="constant"')):
        made = make_record("fedcbdr+feat+calibrate", 50.0, variants={"before calibration": 40.0}, overrides=overrides)
        write_record(made, elsewhere / "results")
    assert "2 more where both runs have train.rounds=20: add --set train.rounds=20" in paper("show", "choices").stdout
    assert "more where" not in paper("show", "choices", "--set", short).stdout


def test_markdown_and_latex_are_printed_alone() -> None:
    assert paper("show", "choices", "--format", "markdown").stdout.startswith("| choice |")
    assert paper("show", "choices", "--format", "latex").stdout.startswith(r"\begin{table}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "choices", "--only", "mometum"), "did you mean 'momentum'"),
        (("run", "choices", "--calibrate"), "--also and --calibrate are for tables"),
        (("run", "choices", "--record", "x.json"), "--record is for 'choices --quick'"),
        (("run", "table-main", "--quick", "--record", "x.json"), "--record is for 'choices --quick'"),
        (("show", "figure-5", "--set", "train.lr=1"), "--set is for tables and choices"),
        (("show", "choice"), "did you mean 'choices'"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(FedfeatError, match=said):
        paper(*arguments)
