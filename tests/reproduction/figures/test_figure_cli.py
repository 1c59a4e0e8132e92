"""A figure by its commands: one real quick run, shown again without another."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from figure_toys import outcome
from paper_records import MakeRecord
from typer.testing import CliRunner

from fedfeat.cli import app, paper_output
from fedfeat.config.config import Config
from fedfeat.config.presets import Cell
from fedfeat.core.errors import FedfeatError, MissingExtra
from fedfeat.runs.sweep import Planned, RunOutcome
from fedfeat_reproduction.experiments import QUICK_MARK
from fedfeat_reproduction.figures import FIGURES, write_numbers
from fedfeat_reproduction.figures.recorded import recorded_runs
from fedfeat_reproduction.results import RecordIndex

FAST = ["--set", "train.rounds=2", "--set", "train.local_epochs=1"]


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["paper", *arguments], env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_run_and_show(tmp_path: Path) -> None:
    out = ["--quick", "--out", str(tmp_path)]
    text = command("run", "figure-10", *out, *FAST)
    assert "not the paper's setting" in text
    assert "the removed component lies nearer to the head" in text
    assert "drawn with --set train.rounds=2, --set train.local_epochs=1\n" in text
    assert (tmp_path / "figures" / "figure-10.pdf").is_file()
    again = command("run", "figure-10", *out, *FAST)
    assert "task 1/3" not in again  # nothing is trained a second time
    shown = command("show", "figure-10", *out)
    assert "drawn with --set train.rounds=2, --set train.local_epochs=1\n" in shown
    assert str(tmp_path / "figures" / "figure-10.svg") in shown.replace("\n", "")
    rows = list(csv.DictReader(io.StringIO(command("show", "figure-10", "--format", "csv", *out))))
    assert [row["class"] for row in rows if row["part"] == "whole"] == ["7", "2", "8"]  # the earlier classes by name


def test_only_names_data_sets_and_methods(tmp_path: Path) -> None:
    with pytest.raises(FedfeatError, match=r"--only 'fedcbr': .* did you mean 'fedcbdr'"):
        command("run", "figure-5", "--only", "fedcbr", "--out", str(tmp_path))
    with pytest.raises(FedfeatError, match="--also and --calibrate are for tables"):
        command("run", "figure-5", "--calibrate", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


REFUSED = [
    (
        "figure-8",
        ["--set", "train.local_epochs=1"],
        "--set train.local_epochs: figure-8 itself varies it (1, 2, 5, 10)",
    ),
    ("figure-6", ["--set", "scenario.budget=20"], "--set scenario.budget: figure-6 itself varies it (10, 20, 40)"),
    ("figure-7", ["--only", "fedcbdr"], "figure-7: shows the settings of fedcbdr+feat; name it in --only too"),
    ("figure-10", ["--set", "feat.egc.enabled=false"], "figure-10: shows what EGC does"),
]


@pytest.mark.parametrize(("name", "options", "reason"), REFUSED)
def test_what_a_figure_cannot_be_drawn_from_is_not_run(
    name: str, options: list[str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(FedfeatError, match=re.escape(reason)):
        command("run", name, "--quick", "--seeds", "1", *options, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [["--only", "fedcbdr"], ["--also", "finetune"]])
def test_a_choice_cannot_be_shown_of_what_was_drawn(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(FedfeatError, match="figure-10: shows what was drawn; --only is for 'paper run'"):
        command("show", "figure-10", *options, "--out", str(tmp_path))


@pytest.mark.parametrize("options", [["--out", "my runs"], ["--quick"], ["--quick", "--out", "runs"]])
def test_a_figure_that_was_not_made_yet(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    advice = f"figure-7 has not been made here; run: fedfeat paper run figure-7 {shlex.join(options)}"
    with pytest.raises(FedfeatError, match=f"{re.escape(advice)}$"):
        command("show", "figure-7", *options)


def test_figures_are_drawn_from_real_numbers_where_there_are_some_and_marked_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "results" / "figures"
    runs = [outcome(c, [60.0, 50.0]) for c in FIGURES["figure-8"].configs(False, (2023,)) if c.data.name == "cifar10"]
    write_numbers(FIGURES["figure-8"], runs, real)
    trained: list[Config] = []

    def finish(planned: Sequence[Planned], *args: Any, **kwargs: Any) -> list[RunOutcome]:
        trained.extend(run.config for run in planned)
        return [replace(outcome(run.config, [70.0, 40.0]), path=run.path) for run in planned]

    monkeypatch.setattr(paper_output, "finish_all", finish)
    out = tmp_path / "drawn"
    options = ["--out", str(out), "--results", str(tmp_path / "results")]
    told = command("figures", "figure-8", "figure-5", "figure-6", *options)
    assert f"{out / 'figure-8.pdf'}  numbers of real runs" in told
    assert f"{out / 'figure-5.pdf'}  built-in digits" in told
    assert {c.data.name for c in trained} == {"digits"}
    assert len(trained) == 3 * 4, "figures 5 and 6 share runs"
    assert "mark" not in json.loads((out / "figure-8.json").read_text())
    marked = json.loads((out / "figure-5.json").read_text())
    assert marked["mark"] == QUICK_MARK
    del marked["mark"]
    (real / "figure-5.json").write_text(json.dumps(marked))
    before = (out / "figure-5.svg").read_bytes()
    command("figures", "figure-5", *options)
    assert (out / "figure-5.svg").read_bytes() != before, "the mark is part of the drawing"
    with pytest.raises(FedfeatError, match="figure-11: no such figure; did you mean 'figure-1"):
        command("figures", "figure-11", *options)


def test_a_panel_whose_runs_are_all_recorded_is_drawn_from_records(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr+feat", 70.0, plain=64.0),
        make_record("refed+feat+calibrate", 62.0, accuracy_of_variants={"before calibration": [90.0] * 4 + [60.0]}),
        make_record("fedcbdr", 61.0),
        make_record("refed", 54.0),
        make_record("fedcbdr+feat", 71.0, seed=2024),
        *(make_record(method, 40.0, cell=Cell("cifar100", 10, 0.5)) for method in ("fedcbdr+feat", "fedcbdr", "refed")),
    ]
    figure = FIGURES["figure-5"]
    found = recorded_runs(figure, RecordIndex(records))
    assert found is not None
    assert {run.config.data.name for run in found.runs} == {"cifar10"}, "of CIFAR-100 FEAT_R is missing"
    numbers = figure.measure(found.runs)
    ends = {row["method"]: (row["accuracy"], row["seeds"]) for row in numbers.where(task=5)}
    assert ends == {"fedcbdr+feat": (70.0, 1), "refed+feat": (60.0, 1), "fedcbdr": (61.0, 1), "refed": (54.0, 1)}
    assert found.options.mark == "invented; some trained without the exemplars that calibration held out"
    assert recorded_runs(figure, RecordIndex(records[:3])) is None
    assert recorded_runs(FIGURES["figure-4"], RecordIndex(records)) is None, "needs models"


def test_recorded_runs_are_those_of_what_a_figure_varies(make_record: MakeRecord) -> None:
    methods = ("fedcbdr+feat", "refed+feat", "fedcbdr", "refed")
    cell = Cell("tiny", 5, 0.5)
    records = [
        make_record(m, b / 10, cell=cell, overrides=(f"scenario.budget={b}",)) for m in methods for b in (250, 500)
    ]
    found = recorded_runs(FIGURES["figure-6"], RecordIndex(records))
    assert found is not None
    numbers = FIGURES["figure-6"].measure(found.runs)
    assert [(row["budget"], row["accuracy"]) for row in numbers.where(method="refed")] == [(250, 25.0), (500, 50.0)]
    assert recorded_runs(FIGURES["figure-8"], RecordIndex(records)) is None


def test_without_matplotlib_numbers_are_written_and_drawn_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(planned: Sequence[Planned], *args: Any, **kwargs: Any) -> list[RunOutcome]:
        return [replace(outcome(run.config, [70.0, 40.0]), path=run.path) for run in planned]

    monkeypatch.setattr(paper_output, "finish_all", finish)
    results, there = tmp_path / "results", tmp_path / "there"
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        text = command("run", "figure-8", "--quick", "--seeds", "1", "--out", str(there))
        assert "matplotlib is not installed here" in text
        assert "pip install 'fedfeat[paper]'" in text
        with pytest.raises(MissingExtra, match="drawing figures needs the package 'matplotlib'"):
            command("figures", "figure-8", "--out", str(tmp_path / "drawn"))
    (results / "figures").mkdir(parents=True)
    assert sorted(path.name for path in (there / "figures").iterdir()) == ["figure-8.csv", "figure-8.json"]
    (there / "figures" / "figure-8.json").rename(results / "figures" / "figure-8.json")
    command("figures", "figure-8", "--out", str(tmp_path / "drawn"), "--results", str(results))
    assert (tmp_path / "drawn" / "figure-8.pdf").is_file()
