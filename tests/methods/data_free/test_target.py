from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods.data_free import synthesis
from fedfeat.methods.data_free.pool import LOGITS, POOL, PREVIOUS_LOGITS, PREVIOUS_MODEL, SyntheticBatches
from fedfeat.methods.data_free.synthesis import AGREEMENT
from fedfeat.methods.data_free.target import TargetSettings, target
from fedfeat.methods.data_free.target_synthesis import TargetGenerationSettings
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy

POOL_BYTES = 3 * 8 * 8 * 8  # rounds x batch of the toy settings, 8x8 grey pixels


@pytest.fixture
def run(tmp_path):
    return run_toy(tmp_path, "target")


def in_second_task(method="target", **changes):
    """An engine in task 2, with a previous model and a pool in place."""
    experiment = Experiment(toy_config(method, **changes), toy_dataset())
    engine = experiment.engine
    before = engine.begin_task(0)
    weights = engine.begin_task(1, before)
    pool = torch.randint(0, 256, (20, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    engine.shared = {PREVIOUS_MODEL: before, POOL: pool}
    return engine, weights


def test_the_defaults_are_the_published_ones():
    settings = TargetSettings()
    assert (settings.kd, settings.temperature, settings.batch) == (25.0, 2.0, 128)
    assert settings.generation == TargetGenerationSettings()
    method = target(settings)
    assert [(t.name, t.weight) for t in method.active_terms(0)] == [("ce", 1.0)]
    assert [(t.name, t.weight) for t in method.active_terms(1)] == [("ce", 1.0), ("kd", 25.0)]


def test_the_pool_is_delivered_once_per_client_and_task_in_eight_bits(run):
    # 3 clients, and two task ends with a task after them.
    assert extra_traffic(run.result) == {"down/train/shared.synthetic_pool": POOL_BYTES * 3 * 2}
    assert run.progress.shared[POOL].dtype == torch.uint8
    assert run.progress.shared[POOL].numel() == POOL_BYTES


def test_nothing_is_generated_after_the_last_task(run, tmp_path):
    assert sorted(p.name for p in (tmp_path / "target" / "pictures").iterdir()) == ["task-1.png", "task-2.png"]
    assert 0 <= run.result["numbers"][AGREEMENT] <= 1
    assert not target(TargetSettings()).task_end[0].after_last


def test_distillation_starts_with_the_second_task(run, tmp_path):
    rounds = [e for e in RunFolder.open(tmp_path / "target").events() if e["event"] == "round"]
    assert ["kd" in e["losses"] for e in rounds] == [False, False, True, True, True, True]
    # Softened cross-entropy is at least the teacher's entropy, hence positive.
    assert all(e["losses"]["kd"] > 0 for e in rounds[2:])


def test_a_pool_covers_all_seen_classes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(synthesis, "write_picture", lambda path, grid: seen.append((path.name, grid.shape[0])))
    run_toy(tmp_path, "target")
    row = 48 + 2
    assert seen == [("task-1.png", 2 * row + 2), ("task-2.png", 4 * row + 2)]


def test_a_client_that_joins_late_gets_the_pool_of_the_day(tmp_path):
    run = run_toy(tmp_path, "target", scenario={"joins": {"2": 3}})
    assert extra_traffic(run.result)["down/train/shared.synthetic_pool"] == POOL_BYTES * (2 + 3)


def test_both_models_look_at_the_same_synthetic_batch():
    engine, weights = in_second_task()
    engine.model.load(weights)
    client = engine.client(0)
    look = SyntheticBatches(8).start(client, {})
    assert look is not None
    client.network.eval()
    found = look(torch.empty(0))
    assert found[LOGITS].shape == found[PREVIOUS_LOGITS].shape == (8, 2)
    assert found[LOGITS].requires_grad
    assert not found[PREVIOUS_LOGITS].requires_grad
    # Nothing was trained since the task began: old rows are those of the previous model.
    assert torch.allclose(found[LOGITS].detach(), found[PREVIOUS_LOGITS], atol=1e-5)


def test_synthetic_batches_are_a_function_of_the_address():
    engine, weights = in_second_task()
    engine.model.load(weights)

    def first(client_id, round):
        engine.round = round
        look = SyntheticBatches(8).start(engine.client(client_id), {})
        assert look is not None
        return look(torch.empty(0))[PREVIOUS_LOGITS]

    assert torch.equal(first(0, 0), first(0, 0))
    assert not torch.equal(first(0, 0), first(1, 0))
    assert not torch.equal(first(0, 0), first(0, 1))


def test_there_is_no_synthetic_batch_in_the_first_task():
    engine = Experiment(toy_config("target"), toy_dataset()).engine
    engine.begin_task(0)
    assert SyntheticBatches(8).start(engine.client(0), {}) is None


def test_group_norm_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.norm"):
        run_toy(tmp_path, "target", model={"norm": "group"})
    assert not [e for e in RunFolder.open(tmp_path / "target").events() if e["event"] == "round"]


@pytest.mark.parametrize("method", ["target", "lander"])
def test_tasks_of_one_class(tmp_path: Path, method):
    run = run_toy(tmp_path, method, scenario={"tasks": 6})
    assert np.isfinite(run.result["final_accuracy"])
    assert torch.isfinite(run.progress.weights).all()


@pytest.mark.parametrize("method", ["target", "lander"])
def test_the_global_model_is_untouched_by_the_boundary(tmp_path: Path, method):
    experiment = Experiment(toy_config(method), toy_dataset())
    step = experiment.method.task_end[0]
    before, after = [], []

    class Watched:
        after_last = step.after_last

        def ops(self):
            return step.ops()

        def at_task_end(self, task_end):
            before.append(task_end.weights.clone())
            step.at_task_end(task_end)
            after.append(task_end.server.progress.weights.clone())

    experiment.method = replace(experiment.method, task_end=(Watched(),))
    experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    assert len(before) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_the_old_model_is_kept_better_than_by_finetuning(tmp_path: Path):
    generation = {"rounds": 6, "batch": 32, "steps": 10, "warmup": 6, "one_hot": 5.0, "batch_norm": 1.0}
    changes = {"scenario": {"tasks": 2, "clients": 2, "beta": 100.0}, "train": {"rounds": 5}}
    kept = run_toy(tmp_path, "target", target={"batch": 32, "generation": generation}, **changes)
    plain = run_toy(tmp_path, "finetune", **changes)
    assert kept.result["accuracy_matrix"][1][0] > plain.result["accuracy_matrix"][1][0] + 5
