"""The tables say what the result files say, in every form."""

from __future__ import annotations

import csv
import io
import json
import statistics

import pytest
from rich.console import Console

from fedfeat.report.collect import find_runs, group_runs
from fedfeat.report.tables import COLUMNS, comparison_csv, comparison_markdown, comparison_terminal


@pytest.fixture
def rows(make_run):
    paths = [make_run("finetune", s) for s in (0, 1)] + [make_run("fedcbdr+feat", s, gain=6.0) for s in (0, 1)]
    return group_runs(find_runs(paths))


def test_csv_equals_the_result_files(rows):
    found = {line["method"]: line for line in csv.DictReader(io.StringIO(comparison_csv(rows)))}
    for row in rows:
        results = [json.loads((run.path / "result.json").read_text()) for run in row.runs]
        for name in ("final_accuracy", "final_accuracy_uncorrected", "forgetting", "images_per_second"):
            values = [r[name] for r in results]
            assert float(found[row.method][f"{name}_mean"]) == statistics.fmean(values)
            assert float(found[row.method][f"{name}_std"]) == statistics.stdev(values)
        assert float(found[row.method]["megabytes_down_mean"]) == 3.5
    assert found["finetune"]["seeds"] == "0 1"


def test_markdown_parses_back(rows):
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in comparison_markdown(rows).splitlines()]
    assert {len(line) for line in lines} == {len(COLUMNS) + 3}
    best = dict(zip(lines[0], lines[2], strict=True))
    assert best["method"] == "fedcbdr+feat"
    assert best["final accuracy (%)"] == "76.00 ± 0.71"
    assert best["without correction (%)"] == "73.00 ± 0.71"
    assert best["up (MB)"] == "2.0"


def test_names_cannot_break_the_markdown_table_or_the_csv(make_run):
    name = 'a|b\n"c", <script>'
    rows = group_runs(find_runs([make_run(name, folder="x")]))
    line = comparison_markdown(rows).splitlines()[2]
    assert line.count("|") - line.count("\\|") == len(COLUMNS) + 4
    assert "<script>" not in line
    (parsed,) = csv.DictReader(io.StringIO(comparison_csv(rows)))
    assert parsed["method"] == name


@pytest.mark.parametrize("width", [80, 140])
def test_terminal_table_fits_and_is_whole(rows, width):
    console = Console(width=width, file=io.StringIO())
    console.print(comparison_terminal(rows, width))
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for part in ("fedcbdr+feat", "76.00", "73.00", "1000"):
        assert part in text


def test_terminal_table_takes_names_literally(make_run):
    console = Console(width=140, file=io.StringIO())
    console.print(comparison_terminal(group_runs(find_runs([make_run("[red]x[/red]", folder="x")]))))
    assert "[red]x[/red]" in console.file.getvalue()
