"""Exemplars that are drawn by address alone are chosen when a client takes part again: the same, and no earlier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfeat.algorithm.client import EXEMPLARS
from fedfeat.algorithm.engine import DropOut
from fedfeat.config.config import Config
from fedfeat.federation.progress import Progress
from fedfeat.methods.replay import UniformChoice
from fedfeat.runs.contract.compare import difference
from fedfeat.runs.contract.trial import Interrupted, interrupting
from fedfeat.runs.experiment import Experiment, resume, start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset, write_toy
from toy_runs import run_toy

# Of nine clients two take part in a round; two join late; some hold fewer images than they may keep.
FEW = {"clients": 9, "participation": 2, "min_samples": 0, "joins": {"3": 2, "7": 3}, "budget": 40}


@contextmanager
def at_once() -> Iterator[None]:
    """Choose as a rule does that needs the model, and as every rule did in earlier versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UniformChoice, "by_address", False)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    data = {"name": "npz", "path": str(write_toy(tmp_path_factory.mktemp("toy") / "toy.npz"))}
    return toy_config("replay+etf+balanced", data=data, scenario=FEW)


@pytest.fixture(scope="module")
def chosen_at_once(tmp_path_factory: pytest.TempPathFactory, config: Config) -> Path:
    folder = tmp_path_factory.mktemp("at-once") / "run"
    with at_once():
        start(config, folder)
    return folder


def untimed(path: Path) -> dict[str, Any]:
    result = RunFolder.open(path).result()
    assert result is not None
    return {k: v for k, v in result.items() if k not in ("seconds", "images_per_second")}


def test_a_run_has_the_bytes_of_one_that_chooses_at_once(tmp_path: Path, config: Config, chosen_at_once: Path) -> None:
    start(config, tmp_path / "run")
    assert difference(chosen_at_once, tmp_path / "run") is None
    assert untimed(tmp_path / "run") == untimed(chosen_at_once), "traffic and exemplars are counted the same"


def test_only_clients_that_took_part_again_have_a_state(tmp_path: Path) -> None:
    experiment = run_toy(tmp_path, "replay", scenario=FEW).experiment
    scenario, states = experiment.scenario, experiment.engine.states
    again = {int(k) for task in (1, 2) for round in range(2) for k in scenario.participants(task, round)}
    assert set(states) <= again
    assert len(again) < 9
    before = [scenario.samples(task, k) for k in states for task in range(2)]
    assert set(torch.cat([s[EXEMPLARS] for s in states.values()]).tolist()) <= set(np.concatenate(before).tolist())


def test_a_run_that_is_killed_after_every_event_chooses_the_same(
    tmp_path: Path, config: Config, chosen_at_once: Path
) -> None:
    folder = tmp_path / "run"
    with suppress(Interrupted):
        start(config, folder, (interrupting(2),))
    while RunFolder.open(folder).result() is None:
        with suppress(Interrupted):
            resume(folder, (interrupting(2),))
    assert difference(chosen_at_once, folder) is None


@pytest.mark.parametrize("stop", [3, 4, 6])  # in the end of task 1, after it, in that of task 2
def test_a_run_that_an_earlier_version_began_goes_on_with_what_its_clients_chose(
    tmp_path: Path, config: Config, chosen_at_once: Path, stop: int
) -> None:
    with at_once(), suppress(Interrupted):
        start(config, tmp_path / "run", (interrupting(stop),))
    resume(tmp_path / "run")
    assert difference(chosen_at_once, tmp_path / "run") is None


def test_a_client_that_drops_out_of_the_choice_keeps_nothing(tmp_path: Path) -> None:
    experiment = Experiment(toy_config("replay"), toy_dataset())
    keep = experiment.engine.ops["keep_random"]

    def unreliable(client: Any, request: Any) -> Any:
        if client.id == 1:
            raise DropOut("failed", "broken")
        return keep(client, request)

    experiment.engine.ops["keep_random"] = unreliable
    folder = RunFolder.create(tmp_path / "run", experiment.config, {})
    result = experiment.run(folder, Progress(), ())
    assert [(f["task"], f["failed"]) for f in result["rounds_with_fewer_clients"]] == [
        (1, {"1": "broken"}),
        (2, {"1": "broken"}),
    ]
    assert sorted(experiment.engine.states) == [0, 2]


@pytest.mark.parametrize(("method", "op"), [("replay", "keep_random"), ("herding", "keep_herded")])
def test_only_participants_of_a_task_keep_exemplars_if_asked_for(tmp_path: Path, method: str, op: str) -> None:
    scenario = FEW | {"asked_at_end": "participants", "budget": 8, "joins": {}, "partition": "iid"}
    run = run_toy(tmp_path, method, scenario=scenario)
    took_part = [{int(k) for r in range(2) for k in run.experiment.scenario.participants(task, r)} for task in (0, 1)]
    asked = sum(map(len, took_part))
    assert run.result["traffic"][f"down/{op}/quota"] == 4 * asked
    assert set(run.experiment.engine.states) <= took_part[0] | took_part[1]
    kept = [e["exemplars"] for e in RunFolder.open(tmp_path / method).events() if e["event"] == "task"]
    assert kept == [8, 16, 16], "the budget is shared by those that are asked"
    forecast = run.experiment.workload(run.experiment.config, run.experiment.scenario)
    assert sum(forecast.crossings(task, f"down/{op}/quota", None) for task in (0, 1)) == asked
    assert forecast.exemplars(2).sum() == 16
