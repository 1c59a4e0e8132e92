"""What is left to run: counted by seed, priced from records, and printed as a queue that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper_command import paper
from paper_records import MakeRecord

from fedfeat.cli.queue import read_queue
from fedfeat.config.config import make_config
from fedfeat.config.presets import Cell, experiment
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.identity import identity
from fedfeat_reproduction import recommended
from fedfeat_reproduction.missing import OURS, Cost, Costs, Needed, chosen, minutes, needed, queue_lines
from fedfeat_reproduction.records import Record, write_record
from fedfeat_reproduction.results import RecordIndex
from fedfeat_reproduction.tables import MAIN

CELL = Cell("cifar10", 5, 0.5)
SEEDS = (2023, 2024)


def of_main(records: list[Record], cell: Cell = CELL) -> Needed:
    found = needed(RecordIndex(records), Path("nowhere"), SEEDS)
    return next(need for need in found if (need.name, need.cell) == (MAIN, cell.name))


def cost_of(records: list[Record], method: str, cell: Cell = CELL, *changes: str) -> Cost:
    cost = Costs(records).of(make_config(experiment(cell, method), changes))
    assert cost is not None
    return cost


def test_a_run_is_left_until_every_seed_of_its_number_is_there(make_record: MakeRecord) -> None:
    assert len(of_main([]).runs) == 9 * len(SEEDS)
    one = of_main([make_record("fedcbdr+feat", 70.0)])
    assert (one.numbers, one.ours) == (9, 1)
    assert "FEAT_F" not in one.missing
    assert [(c.method, c.seed) for c in one.runs if c.method == "fedcbdr+feat"] == [("fedcbdr+feat", 2024)]
    both = of_main([make_record("fedcbdr+feat+calibrate", 70.0, seed=seed) for seed in SEEDS])
    assert not [c for c in both.runs if c.method == "fedcbdr+feat"], "a calibrated run tells the figure, too"
    other = of_main([make_record("fedcbdr+feat", 70.0, overrides=("train.rounds=40",))])
    assert other.ours == 0, "a run of other length is another number"


def test_a_run_costs_what_the_same_one_took_and_otherwise_in_proportion(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr", 60.0, seconds=100.0, wall_seconds=110.0),
        make_record("fedcbdr", 60.0, seed=2024, seconds=140.0),  # its time with loading is not known
        make_record("finetune", 20.0, seconds=1.0, environment={"cpus": 2}),
    ]
    assert cost_of(records, "fedcbdr") == Cost(pytest.approx((110 + 1.1 * 140) / 2), estimated=False)
    assert cost_of(records, "fedcbdr", CELL, "train.rounds=40") == Cost(pytest.approx(0.4 * 132), estimated=True)
    # Without exemplars 50,000 images in place of 53,000 of a task's epochs on average; on a CPU nothing is learnt.
    assert cost_of(records, "finetune") == Cost(pytest.approx(132 * 50 / 53), estimated=True)
    tiny = cost_of(records, "fedcbdr", Cell("tiny", 5, 0.5))
    assert tiny == Cost(pytest.approx(132 * 4 * 30 / 53), estimated=True), "half the images and four times the pixels"
    assert Costs(records[2:]).of(make_config(experiment(CELL, "fedcbdr"))) is None
    assert [minutes(c) for c in (None, Cost(0, True), Cost(90, False), Cost(600, True))] == ["?", "", "2", "~10"]


def test_a_run_that_was_recorded_in_its_own_cell_tells_more_than_others(make_record: MakeRecord) -> None:
    records = [
        make_record("fedcbdr", 60.0, seconds=100.0, wall_seconds=100.0),
        make_record("fedlwf", 60.0, seconds=300.0, wall_seconds=300.0),
        make_record("fedcbdr", 60.0, cell=Cell("cifar10", 5, 1.0), seconds=700.0, wall_seconds=700.0),
    ]
    assert cost_of(records, "fedlwf", CELL, "train.rounds=20").seconds == pytest.approx(60)
    assert cost_of(records, "fedlwf", Cell("cifar10", 5, 0.5, 10)).seconds == pytest.approx(300)
    assert cost_of(records, "fedcbdr", Cell("cifar10", 5, 1.0)).seconds == pytest.approx(700)


def test_the_queue_has_every_run_once_and_is_understood(make_record: MakeRecord, tmp_path: Path) -> None:
    records = [make_record("fedcbdr+feat", 70.0, seconds=100.0)]
    needs = list(needed(RecordIndex(records), Path("nowhere"), SEEDS))
    lines = list(queue_lines(needs, Costs(records), SEEDS))
    runs = {identity(c): c for need in needs for c in need.runs}
    assert len([line for line in lines if line[0] != "#"]) == len(runs)
    seeds = [2024 if "seed=2024" in line else 2023 for line in lines if line[0] != "#"]
    assert seeds == sorted(seeds), "the first seed of everything comes first"
    file = tmp_path / "queue.txt"
    file.write_text("\n".join([*lines[:12], *lines[-60::7]]))
    for seconds, run in read_queue(file, tmp_path):
        config = run.config.model_copy(update={"engine": type(run.config.engine)()})
        assert identity(config) in runs
        assert run.config.engine.name == "cuda"
        assert seconds >= 5


def test_what_is_recorded_leaves_the_list_and_the_queue(make_record: MakeRecord, elsewhere: Path) -> None:
    write_record(make_record("fedcbdr", 60.0, cell=Cell("cifar100", 5, 0.1), seconds=120.0), elsewhere / "results")
    shown = paper("list", "table-ablation", "--seeds", "1").output
    assert "cifar100-5-beta0.1-k5  5        1     2          ~" in shown
    assert "+ETF, " in shown
    assert "figure-3" not in shown
    queue = paper("list", "table-ablation", "--seeds", "1", "--queue").stdout
    assert queue.startswith("# table-ablation cifar10-3-beta0.5-k5, seed 2023\n")
    assert "run cifar100-5" in queue
    assert "--set method=fedcbdr --set scenario.beta=0.1" not in queue
    with pytest.raises(FedfeatError, match="table-ablatio: no such table or figure; did you mean 'table-ablation'"):
        paper("list", "table-ablatio")
    with pytest.raises(FedfeatError, match="see 'fedfeat paper list recipe'"):
        paper("show", "recipe")


def test_the_recipe_is_a_row_of_the_list_with_a_run_in_every_cell(make_record: MakeRecord, tmp_path: Path) -> None:
    there = make_record(recommended.METHOD, 77.0, seconds=80.0, overrides=recommended.SETTINGS)
    bare = make_record(recommended.METHOD, 77.0, cell=Cell("cifar10", 3, 0.5), seconds=80.0)
    needs = list(chosen(OURS, RecordIndex([there, bare]), SEEDS))
    assert len(needs) == 24
    assert sum(need.ours for need in needs) == 1, "without its recipe the composition is another experiment"
    assert [c.seed for c in next(n for n in needs if n.cell == CELL.name).runs] == [2024]
    lines = list(queue_lines(needs, Costs([there]), SEEDS))
    file = tmp_path / "queue.txt"
    file.write_text("\n".join(lines))
    runs = {identity(c) for need in needs for c in need.runs}
    found = [
        run.config.model_copy(update={"engine": type(run.config.engine)()}) for _, run in read_queue(file, tmp_path)
    ]
    assert {identity(config) for config in found} == runs
    assert len(runs) == 24 * len(SEEDS) - 1
    assert {config.recipe for config in found} == {recommended.NAME}


def test_the_list_is_chosen_and_changed_like_a_run(make_record: MakeRecord, elsewhere: Path) -> None:
    plain = make_record("fedcbdr+feat", 70.0, seconds=120.0)
    write_record(plain, elsewhere / "results")
    feat_f = ("list", "table-main", "--only", "cifar10-5,beta0.5,k5,feat_f", "--seeds", "1")
    assert paper(*feat_f, "--queue").stdout == ""
    (_, line) = paper(*feat_f, "--queue", "--calibrate", "--set", "calibrate.redraw=true").stdout.splitlines()
    assert "method=fedcbdr+feat+calibrate" in line
    assert "calibrate.redraw=true" in line
    calibrated = make_record("fedcbdr+feat+calibrate", 73.0, overrides=("calibrate.redraw=true",))
    write_record(calibrated, elsewhere / "results")
    assert paper(*feat_f, "--queue", "--calibrate", "--set", "calibrate.redraw=true").stdout == ""
    (_, line) = paper(*feat_f, "--queue", "--recipe", "released").stdout.splitlines()
    assert "--recipe released" in line
    with pytest.raises(FedfeatError, match=r"are for tables; name some of table-main, .*, recipe with them"):
        paper("list", "table-main", "figure-3", "--only", "cifar10")
    with pytest.raises(FedfeatError, match="--set seed=5: --seeds says how many seeds"):
        paper("list", "table-main", "--set", "seed=5")
