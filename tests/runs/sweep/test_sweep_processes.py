"""Runs in real processes: same results, and a process that dies takes only its own run with it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from sweep_toys import MakeConfig

from fedfeat.config.config import Config
from fedfeat.runs.sweep import Event, Planned, RunOutcome, finish
from fedfeat.runs.sweep.local import _environment
from toy import untimed


class Sweep(NamedTuple):
    """Four runs in two processes: two plain ones, one that prints, and one whose process was killed."""

    configs: list[Config]
    folder: Path
    outcomes: list[RunOutcome]
    seen: list[tuple[Planned, Event]]


@pytest.fixture(scope="module")
def sweep(toy: MakeConfig, odd_methods: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    configs = [toy("finetune", seed=1), toy("fedcbdr+feat", seed=1), toy("loud", seed=1, **odd_methods)]
    configs.append(toy("finetune", seed=2, train={"rounds": 12}))
    folder = tmp_path_factory.mktemp("sweep")
    seen: list[tuple[Planned, Event]] = []

    def watch(run: Planned, event: Event) -> None:
        seen.append((run, event))
        if run.config.seed == 2 and (event.get("task"), event.get("round")) == (1, 3):
            os.kill(int((run.path / ".lock").read_text()), signal.SIGKILL)

    return Sweep(configs, folder, finish(configs, folder, workers=2, watch=watch), seen)


@pytest.mark.processes
def test_two_processes_give_the_results_of_one(sweep: Sweep, tmp_path: Path) -> None:
    for a, b in zip(finish(sweep.configs[:2], tmp_path), sweep.outcomes, strict=False):
        assert a.result is not None
        assert b.result is not None
        assert untimed(a.result) == untimed(b.result)
        assert a.config is b.config
    seen = Counter(event["event"] for run, event in sweep.seen if run.config.seed == 1)
    assert seen["start"] == seen["end"] == seen["done"] == 3
    assert seen["task"] == 9


@pytest.mark.processes
def test_what_a_method_prints_does_not_disturb_the_talk_with_its_process(sweep: Sweep) -> None:
    plain, _, loud, _ = sweep.outcomes
    assert loud.result is not None
    assert plain.result is not None
    assert loud.result["accuracy_matrix"] == plain.result["accuracy_matrix"]


@pytest.mark.processes
def test_a_killed_process_is_one_failed_run_that_can_be_continued(sweep: Sweep) -> None:
    assert [outcome.error is None for outcome in sweep.outcomes] == [True, True, True, False]
    assert "killed by signal 9" in str(sweep.outcomes[3].error)
    seen: list[Event] = []
    (again,) = finish(sweep.configs[3:], sweep.folder, watch=lambda run, event: seen.append(event))
    assert again.error is None
    assert seen[0]["resumed_at"] is not None


def test_workers_share_the_processor_and_the_gpus() -> None:
    assert [_environment(i, 4, (0, 1))["CUDA_VISIBLE_DEVICES"] for i in range(4)] == ["0", "1", "0", "1"]


def test_a_process_that_cannot_start_is_a_failed_run_not_a_wait(
    toy: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    outcomes = finish([toy(seed=1), toy(seed=2)], tmp_path / "out", workers=2)
    assert all("no worker process: FileNotFoundError" in str(o.error) for o in outcomes)
