"""The picture of a comparison shows the curves, and leaves the caller's matplotlib settings alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import FedfeatError, MissingExtra
from fedfeat.federation.metrics import forgetting_by_task
from fedfeat.report import curves_png
from fedfeat.report.collect import find_runs, group_runs
from fedfeat.report.figures import accuracy_curves
from fedfeat.report.series import accuracy_curve, mean_and_std, mean_matrix

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def runs(make_run):
    paths = [make_run("finetune", s) for s in (0, 2)] + [make_run("fedcbdr+feat", s, gain=6.0) for s in (0, 2)]
    return find_runs(paths)


def colours(path: Path) -> int:
    from matplotlib.image import imread

    sampled = imread(path)[::3, ::3].reshape(-1, 4)
    return len(np.unique((sampled @ [1.0, 300.0, 90_000.0, 0.0]).round(3)))


def test_png_is_not_blank(runs, tmp_path: Path):
    curves_png(runs, tmp_path / "deep" / "curves.png")
    assert colours(tmp_path / "deep" / "curves.png") > 50


def test_curves_are_the_numbers_of_the_runs(runs):
    feat, _ = group_runs(runs)
    mean, std = accuracy_curve(feat, True)
    assert mean.tolist() == [91.0, 76.5]
    assert std == pytest.approx([2**0.5, 2**0.5])
    assert accuracy_curve(feat, False)[0].tolist() == [91.0, 73.5]


def test_means_reach_as_far_as_all_rows_do():
    mean, std = mean_and_std([[1.0, 2.0, 9.0], [3.0, 6.0], []])
    assert mean.tolist() == [2.0, 4.0]
    assert std == pytest.approx([2**0.5, 8**0.5])
    matrix = mean_matrix([[[10.0], [20.0, 30.0]], [[30.0]], []])
    assert matrix.tolist() == [[20.0]]
    assert forgetting_by_task([[90.0], [95.0, 80.0], [60.0, 70.0, 99.0]]) == [35.0, 10.0]


def test_drawn_lines_are_the_curves(runs):
    groups = group_runs(runs)
    axis = accuracy_curves(groups).axes[0]
    drawn = [line.get_ydata().tolist() for line in axis.get_lines()]
    assert drawn == [[91.0, 76.5], [91.0, 73.5], [91.0, 73.5]]  # feat, feat without correction, finetune


def test_settings_of_the_caller_are_left_alone(runs, tmp_path: Path):
    before = dict(matplotlib.rcParams)
    curves_png(runs, tmp_path / "curves.png")
    assert dict(matplotlib.rcParams) == before


def test_formulas_in_names_are_text(make_run, tmp_path: Path):
    curves_png(find_runs([make_run(r"$\frac{$", folder="x")]), tmp_path / "x.png")


def test_without_matplotlib_the_error_names_the_extra(runs, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="plots"):
        curves_png(runs, tmp_path / "curves.png")


def test_nothing_to_draw_is_one_sentence(make_run, tmp_path: Path):
    path = make_run()
    (path / "result.json").unlink()
    (path / "events.jsonl").write_text("")
    with pytest.raises(FedfeatError, match="nothing to draw"):
        curves_png(find_runs([path]), tmp_path / "curves.png")
