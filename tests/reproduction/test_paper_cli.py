"""``fedfeat paper`` as a user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from paper_command import paper
from paper_records import MakeRecord

from fedfeat.core.errors import FedfeatError
from fedfeat.report.tables import latex_text
from fedfeat_reproduction.experiments import QUICK_NOTE
from fedfeat_reproduction.records import write_record

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_list_names_tables_and_figures() -> None:
    text = paper("list").output
    names = ["table-main", "table-ablation", "table-strategies", "table-tasks", "table-communication"]
    assert all(name in text for name in [*names, *(f"figure-{n}" for n in range(3, 11))])


@pytest.mark.slow
def test_quick_runs_show_their_figures_and_are_not_run_again(elsewhere: Path) -> None:
    only = ("table-ablation", "--only", "cifar10-3,beta0.5", "--quick", "--set", "train.rounds=1")
    changed = paper("run", *only)
    assert changed.exit_code == 0
    assert "3 done now" in changed.output
    assert "ours with train.rounds=1\n" in changed.output
    assert QUICK_NOTE in changed.output
    again = paper("run", *only)
    assert "3 done before" in again.output
    assert len(list(elsewhere.glob("runs/paper-quick/*/result.json"))) == 3
    # A changed setting has figures of its own, which are not taken for those of the table's own experiment.
    assert all(row["ours_mean"] for row in _rows("show", *only))
    assert not any(row["ours_mean"] for row in _rows("show", *only[:-2]))


def _rows(*arguments: str) -> list[dict[str, str]]:
    return list(csv.DictReader(paper(*arguments, "--format", "csv").stdout.splitlines()))


@pytest.mark.slow
def test_run_show_and_record_one_cell(elsewhere: Path) -> None:
    cell = ("--only", "cifar10-3,beta0.5,fedcbdr+etf", "--quick")
    run = paper("run", "table-ablation", *cell)
    assert run.exit_code == 0
    ours = _rows("show", "table-ablation", *cell)[0]
    folder = next(elsewhere.glob("runs/paper-quick/digits-3-*"))
    result = json.loads((folder / "result.json").read_text())
    assert float(ours["ours_mean"]) == result["final_accuracy_uncorrected"]
    assert ours["ours_difference"] == ""  # digits are not the paper's setting
    assert f"{result['final_accuracy_uncorrected']:.2f}" in run.output
    assert paper("record", str(folder), "--images", "built in").exit_code == 0
    assert len(list(elsewhere.glob("results/digits-3-*.json"))) == 1
    assert paper("page", "--out", "page.md").exit_code == 0
    assert "| digits | `fedcbdr+etf+egc` | 2023 |" in (elsewhere / "page.md").read_text()


def test_other_forms_of_the_correction_are_shown_where_they_were_run(elsewhere: Path, make_record: MakeRecord) -> None:
    alone = "feat.egc.tail_boost=false"
    for kept in (make_record("fedcbdr+feat", 69.0), make_record("fedcbdr+feat", 73.0, overrides=(alone,))):
        write_record(kept, elsewhere / "results")
    only = ("show", "table-main", "--only", "cifar10-5,beta0.5,k5,fedcbdr+feat")
    assert [(r["row"], r["ours_mean"]) for r in _rows(*only)] == [
        ("FEAT_F", "69.0"),
        ("FEAT_F, removing alone", "73.0"),
    ]
    assert [(r["row"], r["ours_mean"]) for r in _rows(*only, "--set", alone)] == [("FEAT_F", "73.0")]
    assert f"removing alone: ours with {alone}" in paper(*only).output


def test_a_setting_that_changes_no_figure_is_not_said_to(elsewhere: Path, make_record: MakeRecord) -> None:
    write_record(make_record("fedcbdr+feat", 69.0), elsewhere / "results")
    only = ("show", "table-main", "--only", "cifar10-5,beta0.5,k5,fedcbdr+feat")
    (row,) = _rows(*only, "--set", "engine.precision=bf16", "--set", "data.path=elsewhere")
    assert (row["ours_mean"], row["changed"]) == ("69.0", "")


def test_changed_settings_are_named_in_every_format(elsewhere: Path, make_record: MakeRecord) -> None:
    write_record(make_record("fedcbdr", 50.0, overrides=("train.rounds=3",)), elsewhere / "results")
    only = ("show", "table-main", "--only", "cifar10-5,beta0.5,k5,fedcbdr", "--set", "train.rounds=3")
    for format in ("terminal", "markdown", "latex"):
        assert "ours with train.rounds=3" in paper(*only, "--format", format).output
    assert [(row["ours_mean"], row["changed"]) for row in _rows(*only)] == [("50.0", "train.rounds=3")]
    assert latex_text("a&b_#{$}~^%") == r"a\&b\_\#\{\$\}\textasciitilde{}\textasciicircum{}\%"


def test_a_calibrated_method_can_be_added_and_counts_its_own_seeds(elsewhere: Path, make_record: MakeRecord) -> None:
    records = [make_record("fedcbdr+calibrate", 62.0, plain=46.0), make_record("fedcbdr", 50.0)]
    for kept in (*records, make_record("fedcbdr", 52.0, seed=2024)):
        write_record(kept, elsewhere / "results")
    only = (
        "show",
        "table-main",
        "--only",
        "cifar10-5,beta0.5,k5,fedcbdr",
        "--also",
        "fedcbdr+calibrate,fedcbdr+calibrate",
    )
    first, added = _rows(*only)
    assert (first["ours_mean"], first["ours_seeds"], first["calibrated_seeds"]) == ("51.0", "2", "1")
    assert (added["method"], added["ours_mean"], added["calibrated_mean"]) == ("fedcbdr+calibrate", "62.0", "")
    assert "| 51.00 ± 1.4 | 2, 1 |" in paper(*only, "--format", "markdown").output


def test_what_is_damaged_is_left_out_and_named(elsewhere: Path, make_record: MakeRecord) -> None:
    write_record(make_record("fedcbdr", 50.0), elsewhere / "results")
    stranger = make_record("fedcbdr", 60.0)
    stranger.config["train"]["newsetting"] = 1
    (elsewhere / "results" / "stranger.json").write_text(stranger.to_json())
    for name, text in (("empty", "{}"), ("list", "[]"), ("torn", '{"method"')):
        folder = elsewhere / "runs" / "paper" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("")
        (folder / "result.json").write_text(text)
    only = ("show", "table-main", "--only", "cifar10-5,beta0.5,k5,fedcbdr")
    assert [row["ours_mean"] for row in _rows(*only)] == ["50.0"]
    said = paper(*only).stderr
    assert all(f"left out: runs/paper/{name}: " in said for name in ("empty", "list", "torn"))
    assert "left out: fedcbdr seed 2023: unknown key 'train.newsetting'" in said
    assert paper("page", "--out", "page.md").exit_code == 0
    assert paper("show", "choices").exit_code == 0


def test_a_data_set_that_is_not_there_is_one_failed_run(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDFEAT_DATA", raising=False)
    monkeypatch.setenv("FEDFEAT_HOME", str(elsewhere / "home"))
    done = paper("run", "table-main", "--only", "cifar10-5,beta0.5,k5,fedcbdr", "--seeds", "1")
    assert done.exit_code == 1
    assert "failed" in done.output
    assert "fedfeat data get cifar10" in done.output
    assert "1 of 1 runs failed" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "table-mian"), "did you mean 'table-main'"),
        (("run", "table-main", "--only", "cifar11"), "did you mean 'cifar10"),
        (("show", "table-main", "--only", "tiny,beta1"), "no entry of table-main fits all of it"),
        (("show", "table-main", "--also", "fly"), "no method or add-on is called 'fly'"),
        (("show", "table-main", "--set", "train.lrr=1"), "--set: unknown key 'train.lrr'; did you mean 'lr'"),
        (("show", "table-main", "--set", "train.lr"), "expected KEY=VALUE"),
        (("run", "table-main", "--set", "seed=7"), "--set seed=7: --seeds says how many"),
        (("show", "table-main", "--set", "seed=7"), "--set seed=7: --seeds says how many"),
        (
            ("run", "figure-5", "--set", "method=finetune"),
            "figure-5 has its own methods; choose some of them with --only",
        ),
        (("run", "table-tasks", "--set", "scenario.tasks=2"), "is made of cells with their own scenario.tasks"),
        (("show", "table-main", "--set", "data.name=npz"), "is made of cells with their own data.name"),
        (("show", "choices", "--also", "finetune"), "--also is for tables"),
        (("run", "table-communication", "--quick", "--calibrate"), "omit --calibrate"),
        (("run", "table-main", "--only", "fedcbdr", "--set", "train.lr=no"), "--set: train.lr: .* got 'no'$"),
        (("show", "table-main", "--only", "beta."), "--only 'beta.': nothing in this table is called so"),
        (("page", "--results", "nowhere"), "nowhere: no record of a run is there"),
        (("record", "nowhere", "--images", "x"), "not a run folder"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(FedfeatError, match=said):
        paper(*arguments)


def test_markdown_and_latex_are_printed_alone() -> None:
    assert paper("show", "table-main", "--only", "tiny-5", "--format", "markdown").output.startswith("| setting |")
    assert paper("show", "table-main", "--only", "tiny-5", "--format", "latex").output.startswith(r"\begin{table}")
