"""A figure by its commands: one real quick run, shown again without another."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.errors import FedfeatError

FAST = ["--set", "train.rounds=2", "--set", "train.local_epochs=1"]


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["paper", *arguments], env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_run_and_show(tmp_path: Path) -> None:
    out = ["--quick", "--out", str(tmp_path)]
    text = command("run", "figure-10", *out, *FAST)
    assert "not the paper's setting" in text
    assert "the removed component lies nearer to the head" in text
    assert (tmp_path / "figures" / "figure-10.pdf").is_file()
    again = command("run", "figure-10", *out, *FAST)
    assert "task 1/3" not in again  # nothing is trained a second time
    shown = command("show", "figure-10", *out)
    assert str(tmp_path / "figures" / "figure-10.svg") in shown.replace("\n", "")
    rows = list(csv.DictReader(io.StringIO(command("show", "figure-10", "--format", "csv", *out))))
    assert [row["class"] for row in rows if row["part"] == "whole"] == ["class 1", "class 2", "class 3"]


def test_only_names_data_sets_and_methods(tmp_path: Path) -> None:
    with pytest.raises(FedfeatError, match=r"--only 'fedcbr': .* did you mean 'fedcbdr'"):
        command("run", "figure-5", "--only", "fedcbr", "--out", str(tmp_path))
    with pytest.raises(FedfeatError, match="--also and --calibrate are for tables"):
        command("run", "figure-5", "--calibrate", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_figure_that_was_not_made_yet(tmp_path: Path) -> None:
    with pytest.raises(FedfeatError, match="figure-7 has not been made here; run: fedfeat paper run figure-7"):
        command("show", "figure-7", "--out", str(tmp_path))
