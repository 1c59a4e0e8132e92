"""All cells at a glance and accuracy against traffic: counted from records, drawn the same each time, on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper_records import MakeRecord

from fedfeat.config.presets import Cell
from fedfeat_reproduction import recommended
from fedfeat_reproduction.figures.overview import draw_overview
from fedfeat_reproduction.overview import figures_by_cell, in_words, traffic_points
from fedfeat_reproduction.page import render_page
from fedfeat_reproduction.records import Record, read_records
from fedfeat_reproduction.results import RecordIndex, SeedMean

ROOT = Path(__file__).parents[2]
TINY = Cell("tiny", 10, 0.1, 10)


@pytest.fixture
def records(make_record: MakeRecord) -> list[Record]:
    def recipe(final: float, rounds: int, cell: Cell = TINY, seed: int = 2023) -> Record:
        changes = (*recommended.SETTINGS, f"train.rounds={rounds}")
        traffic = {"bytes_up": 1_000_000 * rounds, "bytes_down": 2_000_000 * rounds}
        return make_record(recommended.METHOD, final, cell=cell, seed=seed, overrides=changes, **traffic)

    return [
        make_record("fedcbdr+feat", 71.0),  # published 70.19 ± 1.8
        make_record("fedcbdr+feat", 50.31, cell=Cell("cifar100", 5, 0.5)),  # published 53.31 ± 0.9
        make_record("fedcbdr", 60.0, bytes_up=400, bytes_down=600),
        recipe(12.0, 20),
        recipe(24.0, 40),
        recipe(26.0, 40, seed=2024),
        recipe(60.0, 40, Cell("cifar10", 5, 0.5)),
        recipe(61.0, 100, Cell("cifar100", 5, 0.5)),
    ]


def test_every_cell_is_there_and_the_recipe_with_the_rounds_that_it_recommends(records: list[Record]) -> None:
    cells = figures_by_cell(RecordIndex(records))
    assert len(cells) == 24
    found = {c.cell: c for c in cells}
    assert found[TINY].ours is None
    assert found[TINY].recipe is not None
    assert found[TINY].recipe.values == (24.0, 26.0)
    assert sum(c.recipe is None and c.ours is None for c in cells) == 21


def test_runs_with_the_recipes_earlier_settings_stand_in_unless_they_are_counted(make_record: MakeRecord) -> None:
    changes = (*recommended.SETTINGS, "data.trivial=0")
    cell = Cell("cifar10", 5, 0.5)
    before = make_record(recommended.METHOD, 76.0, cell=cell, overrides=changes)
    found = {c.cell: c.recipe for c in figures_by_cell(RecordIndex([before], earlier=True))}
    assert found[cell] == SeedMean((76.0,), earlier=True)
    assert all(c.recipe is None for c in figures_by_cell(RecordIndex([before])))
    new = make_record(recommended.METHOD, 77.0, cell=cell, overrides=recommended.SETTINGS)
    index = RecordIndex([before, new], earlier=True)
    assert {c.cell: c.recipe for c in figures_by_cell(index)}[cell] == SeedMean((77.0,))
    assert [p.accuracy.earlier for p in traffic_points(index)] == [False]
    assert [p.accuracy.earlier for p in traffic_points(RecordIndex([before], earlier=True))] == [True]


def test_wins_losses_and_distances_are_counted(records: list[Record]) -> None:
    told = in_words(figures_by_cell(RecordIndex(records)))
    assert told.startswith(
        "Our FEAT_F was run in 2 of 24 cells: above the published FEAT_F in 1, below in 1, within its deviation in 1; "
        "-1.1 points in the mean, 1.9 in absolute value. "
    )
    published = {c.cell: c.published.mean for c in figures_by_cell(RecordIndex([]))}
    mean = (25.0 - published[TINY] + 60.0 - 70.19) / 2
    assert f"`{recommended.NAME}` was run in 2 of 24 cells: above the published FEAT_F in 1, below in 1" in told
    assert f"{mean:+.1f} points in the mean" in told
    nothing = in_words(figures_by_cell(RecordIndex([])))
    assert nothing == (
        f"Our FEAT_F was run in 0 of 24 cells. Our recipe `{recommended.NAME}` was run in 0 of 24 cells."
    )


def test_traffic_is_what_a_client_sent_and_received(records: list[Record]) -> None:
    points = traffic_points(RecordIndex(records))
    assert [(p.cell.split, p.method, p.rounds, p.bytes_per_client) for p in points] == [
        ("cifar10-5", recommended.METHOD, 40, 24_000_000),
        ("cifar10-5", "fedcbdr+feat", 100, 0.4),
        ("cifar10-5", "fedcbdr", 100, 200),
        ("cifar100-5", recommended.METHOD, 100, 60_000_000),
        ("cifar100-5", "fedcbdr+feat", 100, 0.4),
    ]


def test_the_page_shows_both_pictures_and_the_counts(records: list[Record]) -> None:
    page = " ".join(render_page(records).split())
    assert "](images/paper/main-table.svg) Our FEAT_F was run in 2 of 24 cells: above" in page
    assert "](images/paper/traffic.svg)" in page
    assert ".svg" not in render_page([])


@pytest.mark.slow
def test_the_pictures_of_the_page_are_what_the_records_give(records: list[Record], tmp_path: Path) -> None:
    drawn = draw_overview(RecordIndex(read_records(ROOT / "results"), earlier=True), tmp_path)
    assert [path.name for path in drawn] == ["main-table.svg", "traffic.svg"]
    for path in drawn:
        kept = ROOT / "docs" / "images" / "paper" / path.name
        assert kept.read_bytes() == path.read_bytes(), "run: python -m fedfeat_reproduction"
    draw_overview(RecordIndex(records), tmp_path / "others")
    assert (tmp_path / "others" / "main-table.svg").read_bytes() != drawn[0].read_bytes()
