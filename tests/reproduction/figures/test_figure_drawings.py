"""Every figure as files: whole, the same each time, in fonts that publishers take, with words inside the page."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figure_toys import outcome

from fedfeat.core.errors import FedfeatError, MissingExtra
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures import FIGURES, FigureOptions, Numbers, draw_again, make_figure, read_figure
from fedfeat_reproduction.figures.style import COLUMN, FORMATS, PAGE, method_look, method_name, paper_style, plain_name

pytestmark = pytest.mark.slow

MakeRuns = Callable[[str], list[RunOutcome]]


@pytest.fixture
def runs_of(toy_runs: dict[str, RunOutcome]) -> MakeRuns:
    """Return runs for a figure: trained ones on the toy problem, or invented results."""

    def make(name: str) -> list[RunOutcome]:
        if name in ("figure-3", "figure-4", "figure-9"):
            return [toy_runs["fedcbdr+etf+egc"], toy_runs["fedcbdr+feat"]]
        if name == "figure-10":
            return [toy_runs["fedcbdr+feat"]]
        configs = FIGURES[name].configs(False, (0, 1))
        return [outcome(c, [90.0 - 3 * t - i % 7 for t in range(c.scenario.tasks)]) for i, c in enumerate(configs)]

    return make


@pytest.mark.parametrize("name", FIGURES)
def test_files_hold_the_numbers_that_are_drawn(name: str, runs_of: MakeRuns, tmp_path: Path) -> None:
    figure = FIGURES[name]
    made = make_figure(figure, runs_of(name), tmp_path)
    assert [p.name for p in made.files] == [f"{name}.{kind}" for kind in (*FORMATS, "csv", "json")]
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for kind, start in starts.items():
        assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(start)
    assert b"/FontFile2" in (tmp_path / f"{name}.pdf").read_bytes()  # TrueType, embedded
    again = read_figure(figure, tmp_path)
    assert again.numbers.rows == made.numbers.rows
    assert {k: v.tolist() for k, v in again.numbers.arrays.items()} == {
        k: v.tolist() for k, v in made.numbers.arrays.items()
    }
    assert again.findings == made.findings
    assert len(made.findings) > 0
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / f"{name}.json", tmp_path / "again")
    for path in draw_again(figure, tmp_path / "again").files:  # its numbers are enough
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    table = list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in made.numbers.rows] == [
        {k: row[k] for k in ours} for row, ours in zip(table, made.numbers.rows, strict=True)
    ]


@pytest.mark.parametrize("name", FIGURES)
def test_words_are_legible_and_on_the_page(name: str, runs_of: MakeRuns) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.legend import Legend

    with paper_style():
        figure = FIGURES[name].draw(FIGURES[name].measure(runs_of(name)))
        assert figure.get_figwidth() in (COLUMN, PAGE)
        assert figure.get_figheight() < 3
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        page = figure.bbox.padded(1.5)
        words = [*figure.texts, *(t for legend in figure.findobj(Legend) for t in legend.get_texts())]
        for axis in figure.axes:
            words += [axis.xaxis.label, axis.yaxis.label, axis.title, *axis.texts]
            low, high = sorted(axis.get_xlim())
            ticks = zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)
            words += [label for place, label in ticks if low <= place <= high]
        for text in words:
            assert text.get_fontsize() >= 6, text.get_text()
            box = text.get_window_extent()
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, text.get_text()


def test_methods_differ_without_colour() -> None:
    looks = [method_look(m) for m in ("fedcbdr+feat", "refed+feat", "fedcbdr", "refed")]
    assert len({(look["marker"], look["mfc"] == look["color"], str(look["ls"])) for look in looks}) == 4
    assert [plain_name(m) for m in ("fedcbdr+feat", "refed+feat", "fedcbdr", "refed", "replay")] == [
        "FEAT_F",
        "FEAT_R",
        "FedCBDR",
        "Re-Fed+",
        "replay",
    ]
    assert method_name("refed+feat").startswith("FEAT$")


def test_rows_of_figures_from_trained_models(toy_runs: dict[str, RunOutcome], gsa_runs: list[RunOutcome]) -> None:
    alignment = FIGURES["figure-3"].measure(gsa_runs)
    assert [len(alignment.where(task=t, method="fedcbdr+etf+egc")) for t in (2, 3)] == [4, 6]
    assert [r["group"] for r in alignment.where(task=3, method="fedcbdr+etf+egc")] == ["tail"] * 4 + ["head"] * 2
    assert all(-1 <= r["lowest_pair"] <= r["alignment"] <= r["highest_pair"] <= 1 for r in alignment.rows)
    drift = FIGURES["figure-4"].measure(gsa_runs)
    assert [r["class"] for r in drift.where(method="fedcbdr+etf+egc")] == ["all", 1, 2, 3, 4]
    cloud = drift.arrays["energies fedcbdr+etf+egc"]
    assert cloud.shape == (4 * 10, 2)
    (whole,) = drift.where(method="fedcbdr+etf+egc", **{"class": "all"})
    assert whole["head_dominated"] == pytest.approx((cloud[:, 0] > cloud[:, 1]).mean())
    maps = FIGURES["figure-9"].measure(gsa_runs)
    assert maps.arrays["images"].shape == (6, 8, 8, 1)
    assert np.allclose(maps.arrays["maps fedcbdr+etf+egc"].max(axis=(1, 2)), 1)
    assert [r["group"] for r in maps.where(method="fedcbdr+etf+egc") if "picture" in r] == ["tail"] * 3 + ["head"] * 3
    logits = FIGURES["figure-10"].measure([toy_runs["fedcbdr+feat"]])
    assert [r["class"] for r in logits.where(panel="e", part="removed")] == ["2", "1"]
    assert all(r["head"] in (None, pytest.approx(1)) for r in logits.where(part="removed"))
    for panel in set(logits.values("panel")) - {"e"}:
        assert [r["group"] for r in logits.where(panel=panel)] == ["tail"] * 2 + ["head"] * 2
        assert sum(r["true"] for r in logits.where(panel=panel)[:2]) == 1  # images of earlier classes only


def test_a_run_that_comes_twice_is_one_seed(tmp_path: Path) -> None:
    figure = FIGURES["figure-8"]
    runs = [outcome(c, [50.0]) for c in figure.configs(True, (1,))]
    made = make_figure(figure, [*runs, *runs], tmp_path)
    assert {row["seeds"] for row in made.numbers.rows} == {1}


def test_files_say_what_was_changed(tmp_path: Path) -> None:
    figure = FIGURES["figure-5"]
    runs = [outcome(c, [60.0, 50.0]) for c in figure.configs(True, (1,)) if c.method == "refed"]
    asked = FigureOptions(("data.path=here", "train.rounds=1", "train.lr=0.1"), "refed")
    assert make_figure(figure, runs, tmp_path, asked).options.text == (
        "drawn with --set train.rounds=1, --set train.lr=0.1, --only refed"  # not where the images lie
    )
    table = json.loads((tmp_path / "figure-5.json").read_text())
    assert (table["set"], table["only"]) == (["train.rounds=1", "train.lr=0.1"], "refed")
    assert make_figure(figure, runs, tmp_path).options.text == ""
    del table["set"], table["only"]
    (tmp_path / "figure-5.json").write_text(json.dumps(table))
    assert read_figure(figure, tmp_path).options == FigureOptions()  # a file of an earlier version


@pytest.mark.parametrize("name", ["figure-3", "figure-4", "figure-9"])
def test_one_of_two_methods_is_drawn_alone(name: str, gsa_runs: list[RunOutcome]) -> None:
    for run in gsa_runs:
        numbers = FIGURES[name].measure([run])
        FIGURES[name].draw(numbers)
        assert not any("GSA aligns" in finding.claim for finding in FIGURES[name].findings(numbers))


def test_numbers_that_are_not_there_or_not_whole(tmp_path: Path) -> None:
    with pytest.raises(FedfeatError, match=r"figure-5 has not been made here; run: fedfeat paper run figure-5"):
        read_figure(FIGURES["figure-5"], tmp_path)
    for text in ("{", '{"rows": []}', "[]", '{"rows": [], "arrays": {"a": {}}}'):
        (tmp_path / "figure-5.json").write_text(text)
        with pytest.raises(FedfeatError, match="not the numbers of a figure"):
            read_figure(FIGURES["figure-5"], tmp_path)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedfeat\[plots\]'"):
        FIGURES["figure-5"].draw(Numbers([]))


def test_the_users_own_style_comes_back() -> None:
    import matplotlib

    before: Any = matplotlib.rcParams["font.size"]
    with paper_style():
        assert matplotlib.rcParams["font.size"] == 8
    assert matplotlib.rcParams["font.size"] == before
