"""Figures show something, and leave the caller's matplotlib settings alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedfeat.errors import FedfeatError, MissingExtra
from fedfeat.report import curves_png
from fedfeat.report.collect import find_runs, group_runs
from fedfeat.report.figures import (
    accuracy_curves,
    accuracy_matrices,
    forgetting_bars,
    head_tail,
    over_rounds,
)
from fedfeat.report.scenario_figure import draw_counts
from fedfeat.report.series import accuracy_curve, forgetting_by_task, head_tail_curve, loss_curve, mean_matrix
from fedfeat.report.style import save_png, to_svg

matplotlib = pytest.importorskip("matplotlib")
FIGURES = [accuracy_curves, accuracy_matrices, forgetting_bars, head_tail, over_rounds]


@pytest.fixture
def runs(make_run):
    paths = [make_run("finetune", s) for s in (0, 2)] + [make_run("fedcbdr+feat", s, gain=6.0) for s in (0, 2)]
    return find_runs(paths)


def colours(path: Path) -> int:
    from matplotlib.image import imread

    sampled = imread(path)[::3, ::3].reshape(-1, 4)
    return len(np.unique((sampled @ [1.0, 300.0, 90_000.0, 0.0]).round(3)))


@pytest.mark.parametrize("draw", FIGURES)
def test_png_is_not_blank(draw, runs, tmp_path: Path):
    save_png(draw(group_runs(runs)), tmp_path / "figure.png")
    assert colours(tmp_path / "figure.png") > 50


def test_scenario_and_curves_are_not_blank(runs, tmp_path: Path):
    save_png(draw_counts(runs[0].scenario), tmp_path / "scenario.png")
    curves_png(runs, tmp_path / "deep" / "curves.png")
    assert colours(tmp_path / "scenario.png") > 50
    assert colours(tmp_path / "deep" / "curves.png") > 50


def test_curves_are_the_numbers_of_the_runs(runs):
    feat, plain = group_runs(runs)
    mean, std = accuracy_curve(feat, True)
    assert mean.tolist() == [91.0, 76.5]
    assert std == pytest.approx([2**0.5, 2**0.5])
    assert accuracy_curve(feat, False)[0].tolist() == [91.0, 73.5]
    assert mean_matrix(plain)[1].tolist() == [51.0, 95.0]
    assert forgetting_by_task([[90.0], [95.0, 80.0], [60.0, 70.0, 99.0]]) == [35.0, 10.0]
    assert head_tail_curve(feat, 1, True).tolist() == [57.0]
    assert head_tail_curve(feat, 1, False).tolist() == [51.0]
    np.testing.assert_array_equal(loss_curve(feat, "gsa"), [np.nan, np.nan, 0.1, 0.1])


def test_drawn_lines_are_the_curves(runs):
    groups = group_runs(runs)
    axis = accuracy_curves(groups).axes[0]
    drawn = [line.get_ydata().tolist() for line in axis.get_lines()]
    assert drawn == [[91.0, 76.5], [91.0, 73.5], [91.0, 73.5]]  # feat, feat without correction, finetune


def test_svg_stands_alone_and_takes_the_colours_of_the_page(runs):
    svg = to_svg(accuracy_curves(group_runs(runs)), "fig")
    assert svg.startswith("<svg")
    assert "http" not in svg
    assert "var(--series-0)" in svg
    assert 'id="fig-' in svg
    assert 'id="axes' not in svg


def test_settings_of_the_caller_are_left_alone(runs, tmp_path: Path):
    before = dict(matplotlib.rcParams)
    curves_png(runs, tmp_path / "curves.png")
    assert dict(matplotlib.rcParams) == before


def test_formulas_in_names_are_text(make_run, tmp_path: Path):
    run = make_run(r"$\frac{$", names=("$x", "_b", "$y^$", "猫"), folder="x")
    runs = find_runs([run])
    for number, draw in enumerate(FIGURES):
        save_png(draw(group_runs(runs)), tmp_path / f"{number}.png")
    save_png(draw_counts(runs[0].scenario), tmp_path / "scenario.png")


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
