"""Runs in real processes: same results, and a process that dies takes only its own run with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sweep_toys import MakeConfig

from fedfeat.runs.sweep import Event, Planned, finish
from fedfeat.runs.sweep.local import _environment, processes
from toy import untimed


def test_two_processes_give_the_results_of_one(toy: MakeConfig, tmp_path: Path) -> None:
    configs = [toy(method, seed=seed) for method in ("finetune", "fedcbdr+feat") for seed in (1, 2)]
    seen: list[str] = []

    def watch(run: Planned, event: Event) -> None:
        seen.append(event["event"])

    here = finish(configs, tmp_path / "one")
    there = finish(configs, tmp_path / "two", workers=2, watch=watch)
    for a, b in zip(here, there, strict=True):
        assert a.result is not None
        assert b.result is not None
        assert untimed(a.result) == untimed(b.result)
        assert a.config is b.config
    assert seen.count("start") == seen.count("end") == seen.count("done") == 4
    assert seen.count("task") == 12


def test_a_killed_process_is_one_failed_run_that_can_be_continued(toy: MakeConfig, tmp_path: Path) -> None:
    configs = [toy("finetune", seed=s, train={"rounds": 15}) for s in (1, 2)]
    killed: list[int] = []

    def watch(run: Planned, event: Event) -> None:
        if run.config.seed == 1 and event["event"] == "round" and not killed:
            killed.append(int((run.path / ".lock").read_text()))
            os.kill(killed[0], signal.SIGKILL)

    outcomes = finish(configs, tmp_path / "out", pool=processes(1), watch=watch)
    assert [o.error is None for o in outcomes] == [False, True]
    assert "killed by signal 9" in str(outcomes[0].error)
    assert finish(configs, tmp_path / "out")[0].error is None


def test_workers_share_the_processor_and_the_cards() -> None:
    assert [_environment(i, 4, (0, 1))["CUDA_VISIBLE_DEVICES"] for i in range(4)] == ["0", "1", "0", "1"]


def test_a_process_that_cannot_start_is_a_failed_run_not_a_wait(
    toy: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    outcomes = finish([toy(seed=1), toy(seed=2)], tmp_path / "out", workers=2)
    assert all("no worker process: FileNotFoundError" in str(o.error) for o in outcomes)


def test_what_a_method_prints_does_not_disturb_the_talk_with_its_process(
    toy: MakeConfig, odd_methods: dict[str, list[str]], tmp_path: Path
) -> None:
    loud, plain = (finish([toy(m, **odd_methods)], tmp_path / m, pool=processes(1))[0] for m in ("loud", "finetune"))
    assert loud.result is not None
    assert plain.result is not None
    assert loud.result["accuracy_matrix"] == plain.result["accuracy_matrix"]
