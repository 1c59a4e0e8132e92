"""The reproduction page: up to date, complete, and honest about what is missing."""

from __future__ import annotations

import re
from pathlib import Path

from paper_records import MakeRecord

from fedfeat.config.presets import Cell
from fedfeat_reproduction.choices import CHOICES
from fedfeat_reproduction.effects import QUICK_FILE, read_measured
from fedfeat_reproduction.page import NO_READING, PAGE, SUMMARY, missing_readings, read_readings, render_page
from fedfeat_reproduction.recipe import collect, write_recipe_tables
from fedfeat_reproduction.records import read_records
from fedfeat_reproduction.render import published_text
from fedfeat_reproduction.tables import TABLES

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_records_give() -> None:
    written = (ROOT / "docs" / "reproduction.md").read_text()
    small = read_measured(ROOT / "results" / QUICK_FILE)
    assert written == render_page(read_records(ROOT / "results"), small), "run: python -m fedfeat_reproduction"


def test_the_recipes_tables_are_what_the_records_give(tmp_path: Path, make_record: MakeRecord) -> None:
    page, copy = ROOT / "docs" / "recipe.md", tmp_path / "recipe.md"
    copy.write_text(page.read_text())
    records = read_records(ROOT / "results")
    write_recipe_tables(records, copy)
    assert copy.read_text() == page.read_text(), "run: python -m fedfeat_reproduction"
    method, changes = "fedcbdr+etf+balanced+distil", ('recipe="fedfeat"',)
    tested = [make_record(method, value, seed=i, overrides=changes) for i, value in enumerate((70, 72))]
    (row,) = collect([*tested, make_record("fedcbdr", 50)], validation=False).items()
    assert row[0] == (method, ())
    assert [figure.mean for figure in row[1].values()] == [71]
    assert collect(tested, validation=True) == {}


def test_every_cell_with_a_figure_of_ours_has_a_reading() -> None:
    assert missing_readings(read_records(ROOT / "results")) == []


def test_readings_are_of_cells_that_exist() -> None:
    others = {CHOICES: {"effects"}, SUMMARY: {"all"}, PAGE: {"head", "questions", "choices", "quick"}}
    for table, cells in read_readings().items():
        assert set(cells) <= (others.get(table) or {entry.cell.name for entry in TABLES[table].entries})


def test_the_page_begins_with_what_is_to_be_learned_where_something_was_run() -> None:
    page = render_page(read_records(ROOT / "results"))
    summary = page[page.index("## In short") : page.index("## Main results")]
    assert "| cifar10-5-beta0.5-k5 | FEAT_F | `fedcbdr+feat` | 70.19 ± 1.8 |" in summary
    assert "`refed" not in summary
    assert read_readings()[SUMMARY]["all"].split(".")[0].strip() in summary
    assert "## In short" not in render_page([])


def test_effects_of_choices_are_read_where_there_are_any() -> None:
    reading = read_readings()[CHOICES]["effects"].split("\n")[0]
    assert reading in render_page(read_records(ROOT / "results"))
    assert reading not in render_page([])


def test_every_published_number_is_on_the_page() -> None:
    page = render_page([])
    assert all(published_text(e.published) in page for table in TABLES.values() for e in table.entries)
    assert page.count("not measured here") >= 10


def test_ours_stand_beside_them_with_the_command_and_further_methods(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr+feat", 71.0),
        make_record("fedcbdr+feat", 73.0, seed=2024),
        make_record("finetune", 18.0),
    ]
    page = render_page(records)
    assert "| FEAT_F | `fedcbdr+feat` | 70.19 ± 1.8 | 72.00 ± 1.4 | 2 | +1.81 |  |  |" in page
    assert "| finetune | `finetune` |  | 18.00 | 1 |  |  |  |" in page
    command = "fedfeat paper run table-main --only cifar10-5,beta0.5,k5 --also finetune --calibrate --engine cuda"
    assert command in page
    assert "| cifar10-5-beta0.5-k5 | `finetune` | 2023 | 18.00 |  | (1) | a GPU | 2 | abc |" in page


def test_other_forms_of_the_correction_stand_below_the_printed_one(make_record: MakeRecord) -> None:
    alone = ("feat.egc.tail_boost=false",)
    records = [
        make_record("fedcbdr", 57.0),
        make_record("fedcbdr+feat", 69.0),
        make_record("fedcbdr+feat", 73.0, overrides=alone),
        make_record("refed+feat+calibrate", 60.0, overrides=(*alone, "feat.egc.rank_norm=true_rank")),
    ]
    page = render_page(records)
    row = "FEAT_F, removing alone | `fedcbdr+feat` | 70.19 ± 1.8 | 73.00 | 1 | +2.81 |  |  |"
    printed = "| FEAT_F | `fedcbdr+feat` | 70.19 ± 1.8 | 69.00 | 1 | -1.19 |  |  |"
    assert f"{printed}\n| {row}\n" in page
    assert f"| cifar10-5-beta0.5-k5 | {row}\n" in page[: page.index("## Main results")]
    only = "fedfeat paper run table-main --only cifar10-5,beta0.5,k5"
    assert f"{only},fedcbdr+feat --set feat.egc.tail_boost=false --calibrate --engine cuda\n" in page
    assert f"{only},refed+feat --set feat.egc.rank_norm=true_rank --set feat.egc.tail_boost=false --calibrate" in page
    assert "| FEAT_R, removing alone, by rank | `refed+feat` | 60.38 ± 1.5 |" in page
    assert "| FedCBDR, " not in page
    assert ", removing alone |" not in render_page(records[:2])


def test_a_cell_without_a_reading_says_so(make_record: MakeRecord) -> None:
    records = [make_record("fedcbdr", 20.0, cell=Cell("tiny", 10, 0.1, 10))]
    assert missing_readings(records) == [("table-main", "tiny-10-beta0.1-k10")]
    assert NO_READING in render_page(records)


def test_effects_of_choices_are_on_the_page(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr+feat+calibrate", 75.0, plain=60.0, variants={"before calibration": 70.0}),
        make_record(
            "fedcbdr+feat+calibrate",
            74.0,
            plain=55.0,
            variants={"before calibration": 66.5},
            overrides=("train.momentum=0",),
        ),
        make_record("fedcbdr+feat+calibrate", 50.0, overrides=("train.momentum=0", "train.aggregation=samples")),
        make_record("fedcbdr+feat+calibrate", 40.0, overrides=("train.schedule=constant", "data.augment=none")),
    ]
    page = render_page(records)
    where = "cifar10-5-beta0.5-k5, `fedcbdr+feat+calibrate`, seed 2023"
    assert f"| `train.momentum = 0.0` | {where} | -5.00 | -3.50 | -1.00 |" in page
    assert f"| `train.aggregation = samples` | {where}, both with `train.momentum = 0.0` |" in page
    assert "Runs that changed several of these" in page
    assert f"| `data.augment = none`, `train.schedule = constant` | {where} |" in page


def test_figures_in_the_answers_are_those_of_records_or_published() -> None:
    kept = [record for record in read_records(ROOT / "results") if "original pixels" in record.images]
    known = {e.published.mean for table in TABLES.values() for e in table.entries if e.published is not None}
    for record in kept:
        variants = record.accuracy_of_variants.values()
        curves = (record.accuracy_after_task, record.accuracy_after_task_uncorrected, *variants)
        known |= {curve[-1] for curve in curves}
    rows = [line for line in read_readings()["page"]["questions"].splitlines() if line.startswith("| ")]
    figures = [float(number) for row in rows for number in re.findall(r"(?<![+\d])\d\d\.\d\b", row)]
    assert len(figures) > 30
    assert [n for n in figures if not any(abs(n - value) < 0.0501 for value in known)] == []


def test_figures_in_the_summary_are_those_of_records_or_published() -> None:
    records = read_records(ROOT / "results")
    known = {e.published.mean for table in TABLES.values() for e in table.entries if e.published is not None}
    known |= {figure.mean for row in collect(records, validation=False).values() for figure in row.values()}
    for record in records:
        curves = (record.accuracy_after_task, record.accuracy_after_task_uncorrected)
        known |= {curve[-1] for curve in (*curves, *record.accuracy_of_variants.values())}
    rows = [line for line in read_readings()[SUMMARY]["all"].splitlines() if line.startswith("| ")]
    figures = [float(number) for row in rows for number in re.findall(r"(?<![+\d])\d\d\.\d\b", row)]
    assert len(figures) > 30
    assert [n for n in figures if not any(abs(n - value) < 0.0501 for value in known)] == []
