"""Reading run folders: whole, unfinished and broken ones, and averaging over seeds."""

from __future__ import annotations

import itertools
import json
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w

from fedfeat.config.config import make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat.report.collect import Spread, find_runs, group_runs, problems, read_run, setting
from fedfeat.report.page_data import page_data
from fedfeat.report.run import Run
from fedfeat.runs.identity import deciding_settings


def test_a_whole_run_misses_nothing(make_run):
    run = read_run(make_run("fedcbdr+feat", 2, gain=4.0))
    assert run.missing == ()
    assert (run.method, run.dataset, run.seed, run.finished) == ("fedcbdr+feat", "digits", 2, True)
    assert run.accuracies() == [92.0, 76.5]
    assert run.accuracies(corrected=False) == [92.0, 74.5]
    assert run.has_correction
    assert len(run.rounds) == 4


def test_mean_and_sample_deviation_over_seeds(make_run):
    runs = [read_run(make_run(seed=s)) for s in (0, 1, 5)]
    (row,) = group_runs(runs)
    assert row.seeds == (0, 1, 5)
    expected = Spread(pytest.approx(74.5), pytest.approx(7.0**0.5))  # deviations -2, -1, 3: 14 / 2
    assert row.spread("final_accuracy") == expected
    sent = row.spread("megabytes_up")
    assert sent is not None
    assert sent.mean == pytest.approx(2.000002)


def test_one_seed_has_no_deviation(make_run):
    (row,) = group_runs([read_run(make_run(seed=3))])
    accuracy = row.spread("final_accuracy")
    assert accuracy == Spread(75.5, None)
    assert accuracy.text() == "75.50"


def test_groups_split_by_setting_and_are_named_by_it(make_run):
    runs = [read_run(make_run(seed=s, lr=lr)) for lr in (0.1, 0.2) for s in (0, 1)]
    groups = group_runs([*runs, read_run(make_run("finetune", 7))])
    assert sorted(g.label for g in groups) == [
        "fedcbdr (lr=0.1)",
        "fedcbdr (lr=0.2)",
        "finetune (lr=0.1)",
    ]
    assert sorted(len(g.runs) for g in groups) == [1, 2, 2]


def test_images_of_ones_own_are_known_by_their_place(make_run):
    own = [read_run(make_run(dataset="npz", place=p, folder=f"own-{p}")) for p in ("a.npz", "b.npz")]
    assert sorted(row.label for row in group_runs(own)) == [
        "fedcbdr (data.path=a.npz)",
        "fedcbdr (data.path=b.npz)",
    ]
    known = [read_run(make_run(place=p, seed=s, folder=f"known-{p}")) for s, p in enumerate(("a", "b"))]
    assert [row.label for row in group_runs(known)] == ["fedcbdr"]
    assert sorted(row.label for row in group_runs([own[0], *known])) == [
        "fedcbdr (data.name=digits)",
        "fedcbdr (data.name=npz)",
    ]


def grid_of(make_run, methods: list[str], **values: list[object]) -> list[Run]:
    """Runs of every combination; a key ``train__lr`` is ``train.lr``."""
    runs = []
    for number, (method, *point) in enumerate(itertools.product(methods, *values.values())):
        tables: dict[str, dict[str, object]] = {"data": {"name": "digits"}}
        for key, value in zip(values, point, strict=True):
            table, _, name = key.partition("__")
            tables.setdefault(table, {})[name] = value
        runs.append(read_run(with_settings(make_run(method, folder=f"run-{number}"), **tables)))
    return runs


def test_labels_keep_every_setting_that_tells_runs_apart_and_nothing_else(make_run):
    swept = {"scenario__budget": [6, 14], "scenario__beta": [0.1, 0.5], "train__lr": [0.01, 0.1], "model__name": "ab"}
    groups = group_runs(grid_of(make_run, ["fedcbdr+feat"], **swept))
    assert len({g.label for g in groups}) == len({g.name for g in groups}) == 16
    found = {g.label: g.name for g in groups}
    told = "beta=0.1, budget=6, model.name=a, lr=0.01"
    assert sorted(told.split(", ")) == sorted(found[next(k for k in found if "lr=0.01" in k and "=6" in k)].split(", "))
    assert not any("more" in label or "#" in label for label in found)


def test_names_in_charts_cut_the_method_and_not_what_differs(make_run):
    methods = ["fedcbdr+etf+gsa+calibrate", "refed"]
    groups = group_runs(grid_of(make_run, methods, scenario__budget=[6, 14], train__lr=[0.01, 0.1]))
    assert {g.name for g in groups} == {
        f"{method} (budget={budget}, lr={lr})"
        for method in ("fedcbdr+etf+\u2026", "refed")
        for budget in (6, 14)
        for lr in (0.01, 0.1)
    }


def test_long_paths_are_told_from_where_they_differ(make_run):
    places = [f"/a/long/way/to/images/of/{name}.npz" for name in ("cats", "dogs")]
    runs = [read_run(make_run(dataset="npz", place=place, folder=place[-8:])) for place in places]
    assert sorted(g.label for g in group_runs(runs)) == [
        "fedcbdr (data.path=\u2026/cats.npz)",
        "fedcbdr (data.path=\u2026/dogs.npz)",
    ]


def with_settings(path: Path, **tables: object) -> Path:
    config = tomllib.loads((path / "config.toml").read_text())
    (path / "config.toml").write_text(tomli_w.dumps({**config, **tables}))
    return path


def test_settings_that_change_no_result_split_no_seeds(make_run):
    left_out = {"mirror": {"tensorboard": True}, "federation": {"quorum": 2}, "fedcbdr": {"mask_block": 8}}
    usual = with_settings(make_run(seed=0), fedcbdr={"mask_block": 256})
    runs = [read_run(usual), read_run(with_settings(make_run(seed=1), **left_out))]
    (row,) = group_runs(runs)
    assert (row.label, row.seeds) == ("fedcbdr", (0, 1))
    other = read_run(with_settings(make_run(seed=2), fedcbdr={"mode": "repo", "mask_block": 8}))
    assert len(group_runs([*runs, other])) == 2


@pytest.mark.parametrize("method", ["fedcbdr+feat", "lander"])
def test_a_setting_is_what_decides_a_result(make_run, method):
    config = make_config({"method": method})
    run = read_run(with_settings(make_run(), **config.to_table()))
    assert setting(run) == {key: value for key, value in flatten(deciding_settings(config)).items() if key != "seed"}


def test_a_prior_that_is_not_finite_is_none(make_run):
    path = make_run("fedcbdr+feat")
    text = (path / "events.jsonl").read_text()
    (path / "events.jsonl").write_text(text.replace('"prior": 0.3', '"prior": NaN').replace("0.7}", "Infinity}"))
    run = read_run(path)
    assert run.missing == ()
    energies = run.tasks[1].energies
    assert energies is not None
    assert (energies.head.prior, energies.tail.prior) == (None, None)
    page_data([run])


def test_best_method_comes_first(make_run):
    runs = [read_run(make_run("finetune")), read_run(make_run("fedcbdr+feat", gain=8.0))]
    assert [row.method for row in group_runs(runs)] == ["fedcbdr+feat", "finetune"]


def test_a_seed_run_twice_counts_once_and_is_named(make_run):
    one, two = make_run(seed=1, folder="a"), make_run(seed=1, folder="b")
    runs = find_runs([one.parent])
    (row,) = group_runs(runs)
    assert row.seeds == (1,)
    assert [path for path, _ in problems(runs)] == [two]


def test_unfinished_run_says_how_far_it_came_and_does_not_count(make_run):
    done, path = make_run(seed=0), make_run(seed=1)
    (path / "result.json").unlink()
    lines = (path / "events.jsonl").read_text().splitlines()
    (path / "events.jsonl").write_text("\n".join(lines[:4]) + '\n{"event": "rou')
    run = read_run(path)
    assert not run.finished
    assert run.accuracies() == [91.0]
    assert any("unfinished: 1 of 2 tasks done, 3 rounds" in s for s in run.missing)
    assert any("1 unreadable line" in s for s in run.missing)
    (row,) = group_runs([run, read_run(done)])
    assert (row.seeds, row.unfinished) == ((0,), 1)


def test_no_finished_run_gives_a_row_without_numbers(make_run):
    path = make_run()
    (path / "result.json").unlink()
    (row,) = group_runs([read_run(path)])
    assert row.spread("final_accuracy") is None
    assert row.seeds == ()


FILES = ["config.toml", "env.json", "scenario.json", "events.jsonl", "result.json"]
BROKEN = [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b'{"tasks": 3}', b"null", b"[" * 100_000]


@pytest.mark.parametrize("name", FILES)
def test_no_broken_file_raises(make_run, name):
    path = make_run()
    for content in BROKEN:
        (path / name).write_bytes(content)
        run = read_run(path)
        group_runs([run])
        harmless = name == "env.json" and content == b'{"tasks": 3}'
        assert bool(run.missing) != harmless, content[:20]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(make_run, name):
    path = make_run()
    (path / name).unlink()
    said = " ".join(read_run(path).missing)
    assert ("unfinished" if name == "result.json" else name) in said


def test_a_result_with_a_wrong_shape_is_not_believed(make_run):
    path = make_run()
    result = json.loads((path / "result.json").read_text())
    result["accuracy_matrix"] = [[1.0], [2.0]]
    (path / "result.json").write_text(json.dumps(result))
    run = read_run(path)
    assert run.result is None
    assert any("triangle" in s for s in run.missing)


def test_folders_are_searched_two_levels_deep(make_run, tmp_path: Path):
    path = make_run()
    deep = tmp_path / "all" / "fedcbdr" / "seed0"
    deep.parent.mkdir(parents=True)
    shutil.move(path, deep)
    assert [run.path for run in find_runs([tmp_path / "all"])] == [deep]
    assert len(find_runs([deep, deep.parent, tmp_path / "all"])) == 1


def test_a_folder_without_runs_is_refused_in_one_sentence(tmp_path: Path):
    with pytest.raises(FedfeatError, match="not a run folder"):
        find_runs([tmp_path])
    with pytest.raises(FedfeatError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
