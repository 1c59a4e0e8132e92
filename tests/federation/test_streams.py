"""Clients that leave or lag and tasks that bring domains, in the loop: what methods see, and which are refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.algorithm.client import Client
from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError
from fedfeat.engines.cuda.simulated import simulated_gpu
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods, compose
from fedfeat.models import FlatModel
from fedfeat.runs.contract.both_ways import BothWays
from fedfeat.runs.experiment import Experiment, start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.trained import load_trained
from toy import toy_config, toy_dataset, toy_table, write_toy
from toy_runs import run_toy

DOMAINS = {
    "data": {"name": "digits-domains"},
    "scenario": {"tasks": 4, "brings": "domains"},
    "train": {"rounds": 1, "local_epochs": 1, "batch": 32},
}


def test_exemplars_of_a_client_that_leaves_are_gone(tmp_path: Path) -> None:
    run = run_toy(tmp_path, "replay", scenario={"leaves": {"2": 3}})
    tasks = [e for e in RunFolder.open(tmp_path / "replay").events() if e["event"] == "task"]
    assert [e["exemplars"] for e in tasks] == [6, 12, 8]  # a third of 12 went; the last task keeps nothing
    assert sorted(run.experiment.engine.states) == [0, 1]


def clients_of(experiment: Experiment, task: int) -> list[Client]:
    engine = experiment.engine
    for step in range(task + 1):
        engine.begin_task(step)
    return [engine.client(int(k)) for k in experiment.scenario.present(task)]


def test_old_classes_are_those_of_the_client(tmp_path: Path) -> None:
    experiment = Experiment(toy_config("replay", scenario={"lag": {"1": 1, "2": 2}}), toy_dataset())
    quick, slow, slowest = clients_of(experiment, 2)
    assert [(c.num_old, c.num_classes) for c in (quick, slow, slowest)] == [(4, 6), (2, 6), (0, 6)]
    assert {c.global_seen for c in (quick, slow, slowest)} == {(2, 4, 6)}
    assert slow.global_seen.num_before == 4
    assert set(slow.labels(slow.samples).tolist()) <= {2, 3}


def test_clients_with_other_old_classes_are_not_trained_as_one_stack(tmp_path: Path) -> None:
    for lag, takes in (({}, True), ({"1": 1}, False)):
        experiment = Experiment(toy_config("replay", scenario={"lag": lag}, engine={"vectorised": 3}), toy_dataset())
        weights = experiment.engine.begin_task(0)
        assert experiment.engine.vectorised.takes({k: {"weights": weights} for k in (0, 2)}) == takes


def test_where_tasks_bring_domains_no_class_is_old(tmp_path: Path) -> None:
    config = make_config(toy_table(method="fedcbdr+feat", run={"keep_models": True}, **DOMAINS))
    result = start(config, tmp_path / "run")
    assert [len(row) for row in result["accuracy_matrix"]] == [1, 2, 3, 4]
    assert result["accuracy_matrix"][3] != [result["final_accuracy"]] * 4
    assert len(result["confusion"]) == len(result["confusion"][0]) == 10
    assert sum(map(sum, result["confusion"])) == 445, "all test images, each in one domain"
    assert any("none is old" in note for note in result["notes"])
    events = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "task"]
    assert [len(e["per_class"]) for e in events] == [10] * 4
    assert events[0]["head_tail"][1] is None
    assert events[1]["head_tail"] == [events[1]["per_task"][1], events[1]["per_task"][0]]
    seen = load_trained(tmp_path / "run", task=2).seen
    assert (seen, seen.num_before) == ((2, 0, 10), 10)


@pytest.mark.parametrize("method", ["fedewc", "fedssi"])
def test_where_tasks_bring_domains_the_model_before_had_every_class(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    widened = FlatModel.widened

    def noting(model: FlatModel, vector: torch.Tensor, num_classes: int, fill: float = 0.0) -> torch.Tensor:
        rows.append(num_classes)
        return widened(model, vector, num_classes, fill)

    monkeypatch.setattr(FlatModel, "widened", noting)
    start(make_config(toy_table(method=method, **DOMAINS)), tmp_path / "run")
    assert set(rows) == {10}


@pytest.mark.slow
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("stream", ["blurry", "domains"])
def test_stacked_and_captured_steps_follow_too(stream: str, captured: bool, tmp_path: Path) -> None:
    changes = (
        DOMAINS
        if stream == "domains"
        else {"scenario": {"blurry": 0.3}, "data": {"path": str(write_toy(tmp_path / "t.npz"))}}
    )
    cuda = {"name": "cuda", "device": "cuda", "kernels": "torch", "vectorised": 1}
    own = cuda if captured else {"vectorised": 50}
    train = {"rounds": 1, "local_epochs": 1, **changes.get("train", {})}
    with simulated_gpu() if captured and not torch.cuda.is_available() else nullcontext():
        config = toy_config("fedcbdr+etf+balanced+distil", **{**changes, "train": train, "engine": own})
        experiment = Experiment(config, engine=BothWays)
        experiment.run(experiment.new_folder(tmp_path / "run"), Progress(), ())
    assert isinstance(experiment.engine, BothWays)
    assert experiment.engine.used == config.scenario.tasks
    assert experiment.engine.difference is None


@pytest.mark.parametrize(
    ("method", "changes", "told"),
    [
        ("finetune", {"scenario": {"blurry": 0.1}}, r"scenario\.blurry: 'finetune' .* softmax covers new classes only"),
        (
            "fedcbdr",
            {"scenario": {"lag": {"1": 1}}, "fedcbdr": {"mode": "class_quota"}},
            r"scenario\.lag: .*class_quota",
        ),
        ("lander", {"scenario": {"brings": "domains"}}, r"scenario\.brings = 'domains': 'lander' .* none is old"),
        (
            "fedcbdr+feat",
            {"scenario": {"lag": {"1": 1}}, "feat": {"egc": {"prior_source": "online"}}},
            r"scenario\.lag: .*prior_source",
        ),
        ("replay", {"scenario": {"lag": {"1": 1}}, "engine": {"name": "cuda"}}, r"exclude each other"),
    ],
)
def test_what_a_method_cannot_follow_is_refused_in_one_sentence(
    method: str, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        toy_config(method, **changes)
    assert "\n" not in str(refused.value)


def test_all_classes_in_the_softmax_take_late_images() -> None:
    toy_config("finetune", scenario={"blurry": 0.1}, finetune={"softmax": "all"})


def test_a_method_refuses_only_streams_that_there_are() -> None:
    for method in all_methods():
        assert set(compose(method, {}).refuses) <= {"blurry", "lag", "domains"}
