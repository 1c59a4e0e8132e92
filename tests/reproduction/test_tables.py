"""The published numbers: as many as the paper prints, in range, and consistent with one another."""

from __future__ import annotations

import pytest

from fedfeat.config.presets import BUDGETS, Cell
from fedfeat.methods import parts_of
from fedfeat_reproduction.tables import TABLES, PaperEntry, Value, parse_cell

MAIN = {(e.label, e.cell): e.published for e in TABLES["table-main"].entries}


def value(table: str, label: str, cell: str, task: int | None = None) -> Value:
    found = [
        e.published
        for e in TABLES[table].entries
        if (e.label, e.cell, e.task) == (label, parse_cell(cell), task) and e.published
    ]
    assert len(found) == 1
    return found[0]


def test_as_many_numbers_as_the_paper_prints() -> None:
    sizes = {name: len(table.entries) for name, table in TABLES.items()}
    assert sizes == {
        "table-main": 9 * 12 * 2,
        "table-ablation": 5 * 4,
        "table-strategies": 6 * 6,
        "table-tasks": 4 * (3 + 5),
        "table-communication": 4,
    }
    main = TABLES["table-main"].entries
    assert len({e.label for e in main}) == 9
    assert len({e.cell for e in main}) == 24
    for table in TABLES.values():
        assert len({(e.label, e.cell, e.task) for e in table.entries}) == len(table.entries)


def test_every_accuracy_is_a_percentage_and_every_deviation_small() -> None:
    for table in TABLES.values():
        for entry in table.entries:
            assert entry.published is not None
            assert 0 <= entry.published.mean <= 100
            assert entry.published.std is None or 0 < entry.published.std < 5
    stds = [e.published.std for name in ("table-main", "table-ablation") for e in TABLES[name].entries if e.published]
    assert None not in stds


@pytest.mark.parametrize(
    ("label", "cell", "expected"),
    [
        ("FEAT_F", "cifar10-5-beta0.5", Value(70.19, 1.8)),
        ("FEAT_F", "cifar10-3-beta0.5", Value(72.67, 1.5)),
        ("FEAT_F", "cifar100-5-beta0.5", Value(53.31, 0.9)),
        ("FedEWC", "cifar10-3-beta0.5", Value(40.48, 1.6)),
        ("FEAT_F", "tiny-10-beta0.5-k10", Value(23.17, 1.1)),
        ("LANDER", "tiny-5-beta0.1", Value(11.91, 1.2)),
        ("TARGET", "tiny-5-beta0.5-k10", Value(25.88, 0.5)),
        ("Re-Fed+", "cifar100-10-beta0.5", Value(38.62, 1.7)),
    ],
)
def test_single_numbers(label: str, cell: str, expected: Value) -> None:
    assert value("table-main", label, cell) == expected


def test_sums_over_the_rows_of_the_main_table() -> None:
    sums: dict[tuple[str, int], float] = {}
    for entry in TABLES["table-main"].entries:
        assert entry.published is not None
        key = (entry.label, entry.cell.clients)
        sums[key] = round(sums.get(key, 0) + entry.published.mean, 2)
    assert sums["FEAT_F", 5] == 589.54
    assert sums["FedCBDR", 5] == 535.02
    assert sums["FEAT_R", 10] == 448.64
    assert sums["FedLwF", 10] == 339.23


def test_tables_agree_where_they_print_the_same_experiment() -> None:
    for table in ("table-ablation", "table-strategies"):
        for entry in TABLES[table].entries:
            same = [v for (label, cell), v in MAIN.items() if cell == entry.cell and _method(label) == entry.method]
            assert entry.published is not None
            assert [v.mean for v in same if v] in ([], [entry.published.mean])
    assert value("table-strategies", "+ FEAT", "cifar100-5-beta0.1").mean == 50.14


def test_the_notes_weighted_means_of_the_task_table() -> None:
    rows = ("FedCBDR", "+ GSA", "+ EGC", "+ EGC + GSA")
    means = [
        sum(n * value("table-tasks", row, "cifar10-3-beta0.5", t).mean for t, n in ((1, 3), (2, 3), (3, 4))) / 10
        for row in rows
    ]
    assert [f"{m:.2f}" for m in means] == ["61.90", "68.89", "71.19", "76.95"]
    assert all(f"{m:.2f}" in TABLES["table-tasks"].note for m in means)


def test_every_row_is_a_method_of_ours_and_every_cell_has_a_budget() -> None:
    for table in TABLES.values():
        for entry in table.entries:
            assert parts_of(entry.method)
            assert entry.cell.budget == BUDGETS[entry.cell.data, entry.cell.tasks]


def test_names_of_cells_can_be_read_back() -> None:
    for cell in {e.cell for e in TABLES["table-main"].entries}:
        assert parse_cell(cell.name) == cell
    assert parse_cell("cifar10-5-beta1.0") == Cell("cifar10", 5, 1.0, 5)
    with pytest.raises(ValueError, match="not a cell"):
        parse_cell("cifar10")


def _method(label: str) -> str:
    entries: tuple[PaperEntry, ...] = TABLES["table-main"].entries
    return next(e.method for e in entries if e.label == label)
