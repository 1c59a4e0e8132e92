"""``fedfeat paper`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paper_command import paper

from fedfeat.errors import FedfeatError
from fedfeat.paper.cells import QUICK_NOTE

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_list_names_tables_and_figures() -> None:
    text = paper("list").output
    names = ["table-main", "table-ablation", "table-strategies", "table-tasks", "table-communication"]
    assert all(name in text for name in [*names, *(f"figure-{n}" for n in range(3, 11))])


def test_quick_runs_show_their_figures_and_are_not_run_again(elsewhere: Path) -> None:
    only = ("table-ablation", "--only", "cifar10-3,beta0.5", "--quick", "--set", "train.rounds=1")
    changed = paper("run", *only)
    assert changed.exit_code == 0
    # A changed setting is run, and is not taken for the table's own experiment.
    assert "3 done now" in changed.output
    assert QUICK_NOTE in changed.output
    again = paper("run", *only)
    assert "3 done before" in again.output
    assert len(list(elsewhere.glob("runs/paper-quick/*/result.json"))) == 3


def test_run_show_and_record_one_cell(elsewhere: Path) -> None:
    cell = ("--only", "cifar10-3,beta0.5,fedcbdr+etf", "--quick")
    run = paper("run", "table-ablation", *cell)
    assert run.exit_code == 0
    shown = paper("show", "table-ablation", *cell, "--format", "csv").output.splitlines()
    ours = dict(zip(shown[0].split(","), shown[1].split(","), strict=True))
    folder = next(elsewhere.glob("runs/paper-quick/digits-3-*"))
    result = json.loads((folder / "result.json").read_text())
    assert float(ours["ours_mean"]) == result["final_accuracy_uncorrected"]
    assert ours["ours_difference"] == ""  # digits are not the paper's setting
    assert f"{result['final_accuracy_uncorrected']:.2f}" in run.output
    assert paper("record", str(folder), "--images", "built in").exit_code == 0
    assert len(list(elsewhere.glob("results/digits-3-*.json"))) == 1
    assert paper("page", "--out", "page.md").exit_code == 0
    assert "| digits | `fedcbdr+etf+egc` | 2023 |" in (elsewhere / "page.md").read_text()


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
        (("record", "nowhere", "--images", "x"), "not a run folder"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(FedfeatError, match=said):
        paper(*arguments)


def test_markdown_and_latex_are_printed_alone() -> None:
    assert paper("show", "table-main", "--only", "tiny-5", "--format", "markdown").output.startswith("| setting |")
    assert paper("show", "table-main", "--only", "tiny-5", "--format", "latex").output.startswith(r"\begin{table}")
