"""The store: what is finished is never run again, what is begun is continued, a failure is an outcome."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sweep_toys import MakeConfig

from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import folder_name
from fedfeat.runs.sweep import Event, Planned, finish, finish_planned, plan
from toy import untimed


class Heard:
    """Collects events by method and seed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.full: list[Event] = []

    def __call__(self, run: Planned, event: Event) -> None:
        self.events.append((run.config.method, run.config.seed, event["event"]))
        self.full.append(event)

    def count(self, name: str) -> int:
        return sum(e[2] == name for e in self.events)


def test_nothing_is_run_twice(toy: MakeConfig, tmp_path: Path) -> None:
    configs = [toy("finetune"), toy("replay"), toy("finetune")]
    first, second = Heard(), Heard()
    outcomes = finish(configs, tmp_path, watch=first)
    assert [o.config.method for o in outcomes] == ["finetune", "replay", "finetune"]
    assert outcomes[0].path == outcomes[2].path
    assert (first.count("start"), first.count("done"), first.count("stored")) == (2, 2, 0)
    again = finish([*configs, toy("replay", seed=8)], tmp_path, watch=second)
    assert (second.count("start"), second.count("done"), second.count("stored")) == (1, 1, 2)
    assert [o.result for o in again[:3]] == [o.result for o in outcomes]


def test_folders_tell_the_values_in_which_runs_differ(toy: MakeConfig, tmp_path: Path) -> None:
    grid = [toy(scenario={"budget": budget}, train={"lr": lr}) for budget in (6, 14) for lr in (0.02, 0.1)]
    names = [run.path.name for run in plan(grid, tmp_path)]
    told = [name.partition("-finetune")[2].rpartition("-seed")[0] for name in names]
    assert told == ["-budget6-lr0.02", "-budget6-lr0.1", "-budget14-lr0.02", "-budget14-lr0.1"]
    assert plan(grid[:1], tmp_path)[0].path.name == folder_name(grid[0])  # nothing differs in one run


def test_a_run_is_found_under_any_name_with_its_fingerprint(toy: MakeConfig, tmp_path: Path) -> None:
    one, other = toy(train={"lr": 0.05}), toy(train={"lr": 0.1})
    finish([one], tmp_path)  # a folder without the value, as earlier versions named it
    heard = Heard()
    outcomes = finish([one, other], tmp_path, watch=heard)
    assert [o.path.name for o in outcomes] == [folder_name(one), folder_name(other, ["train.lr"])]
    assert (heard.count("stored"), heard.count("done")) == (1, 1)


def test_an_interrupted_run_is_continued_to_the_same_result(toy: MakeConfig, tmp_path: Path) -> None:
    config = toy("fedcbdr+feat")
    whole = finish([config], tmp_path / "whole")[0]

    def stop(run: Planned, event: Event) -> None:
        if event["event"] == "task" and event["task"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish([config], tmp_path / "cut", watch=stop)
    heard = Heard()
    cut = finish([config], tmp_path / "cut", watch=heard)[0]
    assert heard.full[0]["resumed_at"] is not None
    assert whole.result is not None
    assert cut.result is not None
    assert untimed(cut.result) == untimed(whole.result)


def test_a_failed_run_is_told_and_does_not_stop_the_others(toy: MakeConfig, tmp_path: Path) -> None:
    missing = toy("replay", data={"path": str(tmp_path / "missing.npz")})
    heard = Heard()
    outcomes = finish([missing, toy("finetune")], tmp_path / "out", watch=heard)
    assert outcomes[0].result is None
    assert "missing.npz" in str(outcomes[0].error)
    assert outcomes[1].result is not None
    assert ("replay", 7, "failed") in heard.events


def test_a_bug_leaves_its_traceback_in_the_folder(
    toy: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr("fedfeat.runs.sweep.planned.Experiment.run", broken)
    config = toy()
    outcome = finish([config], tmp_path)[0]
    story = outcome.path / "error.txt"
    assert outcome.error == f"{outcome.path}: RuntimeError: out of memory (the whole story is in {story})"
    assert "and more" in story.read_text()
    monkeypatch.undo()
    assert finish([config], tmp_path)[0].result is not None
    assert not story.exists()


def test_a_folder_of_another_run_is_refused_by_key(toy: MakeConfig, tmp_path: Path) -> None:
    config = toy()
    path = plan([config], tmp_path)[0].path
    RunFolder.create(path, toy(train={"lr": 0.2}), {})
    outcome = finish([config], tmp_path)[0]
    assert "does not match the run begun here in train.lr" in str(outcome.error)


def test_a_folder_of_another_version_is_refused_with_a_way_out(toy: MakeConfig, tmp_path: Path) -> None:
    config = toy()
    path = plan([config], tmp_path)[0].path
    folder = RunFolder.create(path, config, {})
    folder.config_path.write_text(folder.config_path.read_text() + "\n[yesterday]\nmode = 1\n")
    error = str(finish([config], tmp_path)[0].error)
    assert error.startswith(f"{folder.config_path}: unknown key 'yesterday'")
    assert f"move {path} away" in error


def test_a_known_data_set_that_moved_is_found_at_its_new_place(toy: MakeConfig, tmp_path: Path) -> None:
    gone, config = (toy(data={"name": "digits", "path": place}) for place in (str(tmp_path / "gone"), None))
    path = plan([config], tmp_path)[0].path
    RunFolder.create(path, gone, {})
    assert finish([config], tmp_path)[0].result is not None
    assert RunFolder(path).config().data == config.data


def test_a_folder_of_a_run_on_other_images_of_ones_own_is_refused(toy: MakeConfig, tmp_path: Path) -> None:
    run = Planned(toy(), tmp_path / "run")
    RunFolder.create(run.path, toy(data={"path": str(tmp_path / "other.npz")}), {})
    assert "does not match the run begun here in data.path" in str(finish_planned([run])[0].error)


def test_a_result_does_not_tell_where_the_data_lie(toy: MakeConfig, toy_file: Path, tmp_path: Path) -> None:
    outcome = finish([toy()], tmp_path)[0]
    assert str(toy_file) not in (outcome.path / "result.json").read_text()


@pytest.mark.skipif(os.name != "posix", reason="locks are those of POSIX")
def test_two_programs_do_not_share_a_run(toy: MakeConfig, tmp_path: Path) -> None:
    config = toy()
    inner: list[str | None] = []

    def watch(run: Planned, event: Event) -> None:
        if event["event"] == "task" and not inner:
            inner.append(finish([config], tmp_path)[0].error)

    assert finish([config], tmp_path, watch=watch)[0].result is not None
    assert f"another program (process {os.getpid()}) is running this" in str(inner[0])
