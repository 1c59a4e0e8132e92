"""What figures read from run folders: the right images, labels, models and exemplars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from figure_toys import failed
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.config.config import make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.runs.experiment import Experiment, start
from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures import FIGURES
from fedfeat_reproduction.figures.corrected_logits import corrected
from fedfeat_reproduction.figures.runs import ClientViews, _states_of, client_features, finished, model_view

pytestmark = pytest.mark.slow

TASKS = 3


@pytest.mark.parametrize("task", range(TASKS))
def test_the_model_of_a_task_predicts_as_it_did_in_the_run(toy_runs: dict[str, RunOutcome], task: int) -> None:
    run = toy_runs["fedcbdr+feat"]
    assert run.result is not None
    at = model_view(run, task)
    right = (at.cosines.argmax(dim=1) == at.labels).double().mean()
    assert 100 * float(right) == pytest.approx(run.result["accuracy_after_task_uncorrected"][task])
    assert (at.num_old, at.num_classes) == (2 * task, 2 * task + 2)
    assert sorted(set(at.labels.tolist())) == list(range(at.num_classes))


def test_the_written_out_correction_predicts_as_the_run_did(toy_runs: dict[str, RunOutcome]) -> None:
    run = toy_runs["fedcbdr+feat"]
    assert run.result is not None
    at = model_view(run, TASKS - 1)
    right = (corrected(at).after @ at.prototypes.double()).argmax(dim=1) == at.labels
    assert 100 * float(right.double().mean()) == pytest.approx(run.result["final_accuracy"])


def test_a_run_that_only_removes_is_shown_so(toy_runs: dict[str, RunOutcome], monkeypatch: pytest.MonkeyPatch) -> None:
    at = model_view(toy_runs["fedcbdr+feat"], 1)
    config = make_config(at.trained.config.to_table(), ["feat.egc.tail_boost=false"])
    trained = replace(at.trained, config=config, method=config.build_method())
    removing = at._replace(trained=trained)
    found = corrected(removing)
    assert torch.equal(found.change, -found.removed)
    assert not torch.equal(found.change, corrected(at).change)
    predicted = (found.after @ at.prototypes.double()).argmax(dim=1)
    assert torch.equal(predicted, trained.predict(at.images).labels.cpu())
    monkeypatch.setattr("fedfeat_reproduction.figures.corrected_logits.model_view", lambda run, task: removing)
    numbers = FIGURES["figure-10"].measure([toy_runs["fedcbdr+feat"]])
    assert numbers.values("part") == ["removed"]
    (legend,) = FIGURES["figure-10"].draw(numbers).legends
    assert "(e) whole change" not in [text.get_text() for text in legend.get_texts()]


def test_a_correction_without_its_prior_is_refused(toy_runs: dict[str, RunOutcome]) -> None:
    with pytest.raises(FedfeatError, match="figure-10 shows what EGC does, and a run of fedcbdr"):
        FIGURES["figure-10"].measure([toy_runs["fedcbdr+etf"]])


def test_the_middle_task_of_two_is_the_last(toy_runs: dict[str, RunOutcome], monkeypatch: pytest.MonkeyPatch) -> None:
    views = ClientViews(torch.rand(3, 8, 5), torch.arange(8) % 4, num_old=2, num_classes=4)
    monkeypatch.setattr("fedfeat_reproduction.figures.feature_alignment.client_features", lambda run, task: views)
    run = toy_runs["fedcbdr+etf+egc"]
    config = make_config(run.config.to_table(), ["scenario.tasks=2"])
    numbers = FIGURES["figure-3"].measure([RunOutcome(config, run.path, run.result)])
    assert [(row["task"], row["seeds"]) for row in numbers.rows] == [(2, 1)] * 4


def test_one_client_is_like_no_other(toy_runs: dict[str, RunOutcome]) -> None:
    run = toy_runs["fedcbdr+etf"]
    config = make_config(run.config.to_table(), ["scenario.participation=1"])
    with pytest.raises(FedfeatError, match="fewer than two clients trained at the end of task 2"):
        client_features(RunOutcome(config, run.path, run.result), 1)


def test_clients_train_on_what_they_held_in_that_task(
    toy_runs: dict[str, RunOutcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = toy_runs["fedcbdr+etf"]
    held: dict[tuple[int, int], list[int]] = {}
    make = InProcessEngine.client

    def spy(engine: InProcessEngine, client_id: int) -> Client:
        client = make(engine, client_id)
        held.setdefault((client.task, client.id), client.exemplars.tolist())
        return client

    monkeypatch.setattr(InProcessEngine, "client", spy)
    start(run.config, tmp_path / "again")
    labels = Experiment(run.config).engine.train_images.labels
    for task in range(TASKS):
        states = _states_of(run, 2 * task, labels)
        for client in range(3):
            kept = states.get(client, {}).get("exemplars", torch.empty(0))
            assert isinstance(kept, Tensor)
            assert kept.tolist() == held[task, client], (task, client)
    assert any(held[2, client] for client in range(3))


def test_each_client_has_a_model_of_its_own(toy_runs: dict[str, RunOutcome], monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy_runs["fedcbdr+etf"]
    updates: list[tuple[int, int, int]] = []
    make = InProcessEngine.client

    def spy(engine: InProcessEngine, client_id: int) -> Client:
        updates.append((engine.task, engine.round, client_id))
        return make(engine, client_id)

    monkeypatch.setattr(InProcessEngine, "client", spy)
    found = client_features(run, 1)
    assert updates == [(1, run.config.train.rounds - 1, client) for client in range(3)]  # as in the task's last round
    at = model_view(run, 1)
    assert found.features.shape == (3, len(at.labels), at.features.shape[1])
    assert torch.equal(found.labels, at.labels)
    distances = torch.cdist(found.features.flatten(1), found.features.flatten(1))
    assert (distances[~torch.eye(3, dtype=torch.bool)] > 1e-3).all()
    assert (found.features - at.features).flatten(1).norm(dim=1).min() > 1e-3  # they trained on
    assert torch.equal(client_features(run, 1).features, found.features)


def test_without_a_finished_run_the_reason_is_told(toy_runs: dict[str, RunOutcome]) -> None:
    run = toy_runs["fedcbdr+etf"]
    assert finished([failed(run.config), run]) == [run]
    with pytest.raises(FedfeatError, match="no run has finished: the disk is full"):
        finished([failed(run.config), failed(run.config)])
    with pytest.raises(FedfeatError, match="nothing was run"):
        finished([])


def test_class_order_is_not_that_of_the_data(toy_runs: dict[str, RunOutcome]) -> None:
    """Otherwise the labels above could be right by chance."""
    order = Experiment(toy_runs["fedcbdr+etf"].config).scenario.class_order
    assert not np.array_equal(order, np.arange(len(order)))
