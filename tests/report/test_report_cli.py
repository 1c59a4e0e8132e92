"""``fedfeat report`` prints a table, writes a page and says where; a real run feeds it."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fedfeat.cli.report import report, report_path, write_comparison
from fedfeat.config.config import load_config
from fedfeat.core.errors import FedfeatError
from fedfeat.report import read_run
from fedfeat.runs.experiment import start

app = typer.Typer()
app.command()(report)


def run_report(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_single_run_gets_its_report_inside(make_run):
    path = make_run()
    done = run_report(path)
    assert done.exit_code == 0
    assert "72.50" in done.stdout
    assert str(path / "report.html") in done.stderr
    assert (path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_several_runs_share_a_report_above_them(make_run):
    one, two = make_run(seed=0), make_run(seed=1)
    assert run_report(one, two).exit_code == 0
    assert (one.parent / "report.html").is_file()
    assert report_path([one.parent], None) == one.parent / "report.html"
    assert report_path([one], one.parent) == one.parent / "report.html"
    assert report_path([one], Path("x.html")) == Path("x.html")


def test_csv_alone_goes_to_standard_output(make_run, tmp_path: Path):
    done = run_report(make_run(), "--csv", "--out", tmp_path / "a.html")
    (line,) = csv.DictReader(io.StringIO(done.stdout))
    assert float(line["final_accuracy_mean"]) == 72.5
    done = run_report(tmp_path / "runs", "--markdown", "--out", tmp_path / "a.html")
    assert done.stdout.startswith("| method |")


def test_no_run_folder_and_two_formats_are_refused(make_run, tmp_path: Path):
    path = make_run()
    (tmp_path / "empty").mkdir()
    assert isinstance(run_report(tmp_path / "empty").exception, FedfeatError)
    assert isinstance(run_report(path, "--csv", "--markdown").exception, FedfeatError)


def test_a_comparison_leaves_tables_and_page_beside_the_runs(make_run):
    folder = make_run().parent
    make_run("finetune", 0)
    console = Console(file=io.StringIO(), width=100)
    write_comparison(folder, console)
    assert {"table.md", "table.csv", "report.html"} <= {p.name for p in folder.iterdir()}
    assert "finetune" in console.file.getvalue()


@pytest.fixture(scope="module")
def real_run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("real") / "run"
    start(load_config(Path("digits"), ["method=fedcbdr+feat", "train.rounds=1", "train.local_epochs=1"]), path)
    return path


def test_what_a_real_run_writes_is_read_whole(real_run):
    run = read_run(real_run)
    assert run.missing == ()
    assert run.result is not None
    assert len(run.tasks) == len(run.accuracies()) == len(run.scenario.tasks) == 5
    assert run.matrix() == [t.per_task for t in run.tasks]
    done = run_report(real_run)
    assert f"{run.result.final_accuracy:.2f}" in done.stdout


@pytest.mark.processes
def test_a_report_needs_no_torch(real_run, make_run):
    program = """
import sys
from typer.testing import CliRunner
from fedfeat.cli import app
import fedfeat.report.watch
done = CliRunner().invoke(app, ["report", *sys.argv[1:]])
assert done.exit_code == 0, done.output
assert "torch" not in sys.modules
"""
    uncorrected = make_run("finetune")
    words = [real_run, uncorrected, "--out", uncorrected.parent / "page.html"]
    subprocess.run([sys.executable, "-c", program, *map(str, words)], check=True)
