"""Images in training: replayed ones pasted from the second task on, or repeated; augmented; alike in all engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.data.dataset import Augmentation
from fedfeat.federation.progress import Progress
from fedfeat.federation.training import plan_batches
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

TRAIN = {"rounds": 2, "local_epochs": 2, "batch": 8, "lr": 0.05}


USUAL = Augmentation(1, True, 0.2)
STRONGER = Augmentation(1, True, 0.2, trivial=1.0, cutout=0.5)


def experiment(
    method: str = "replay", vectorised: int = 1, augmentation: Augmentation = USUAL, **train: Any
) -> Experiment:
    config = toy_config(
        method,
        scenario={"tasks": 2, "budget": 30},
        train={**TRAIN, **train},
        engine={"device": "cpu", "threads": 1, "vectorised": vectorised},
    )
    return Experiment(config, toy_dataset(augmentation))


def weights(folder: Path, *arguments: Any, **changes: Any) -> torch.Tensor:
    made = experiment(*arguments, **changes)
    progress = Progress()
    made.run(RunFolder.create(folder, made.config, {}), progress, ())
    return progress.weights


def second_task(**train: Any) -> Any:
    engine = experiment(**train).engine
    engine.begin_task(0)
    first = engine.client(0)
    first.keep(first.samples[:5])
    engine.states[0] = first.state
    engine.begin_task(1)
    return engine.client(0)


def test_only_replayed_images_are_pasted_and_the_rest_of_the_plan_stays() -> None:
    client, plain = second_task(paste=1.0), second_task()
    plan, usual = plan_batches(client, 0), plan_batches(plain, 0)
    assert all(torch.equal(a, b) for a, b in zip(plan[:4], usual[:4], strict=True))
    assert usual.changes.shape == (len(plain.local_set), 0)
    old = client.labels(client.local_set[plan.order]) < client.num_old
    assert old.sum() == 5
    assert torch.equal(plan.changes[:, 0] > 0, old)
    assert not torch.equal(plan_batches(client, 1).changes, plan.changes)
    assert torch.equal(plan_batches(client, 0).changes, plan.changes)


def test_exemplars_are_repeated_in_the_local_set() -> None:
    client = second_task(repeat_exemplars=3, paste=1.0)
    assert len(client.local_set) == len(client.samples) + 15
    assert len(client.trained_exemplars) == 5
    plan = plan_batches(client, 0)
    old = client.labels(client.local_set[plan.order]) < client.num_old
    assert torch.equal(plan.changes[:, 0] > 0, old)
    assert old.sum() == 15


@pytest.mark.parametrize("change", [{"paste": 0.5}, {"repeat_exemplars": 2}, {"augmentation": STRONGER, "paste": 0.5}])
def test_clients_trained_at_once_see_the_same_images(change: dict[str, Any], tmp_path: Path) -> None:
    alone = weights(tmp_path / "alone", "replay", 1, **change)
    at_once = weights(tmp_path / "at-once", "replay", 3, **change)
    usual = weights(tmp_path / "usual", "replay", 1)
    assert torch.allclose(alone, at_once, atol=2e-4)
    assert not torch.allclose(alone, usual, atol=1e-3)


def test_the_prior_is_measured_on_pasted_images() -> None:
    client = second_task(paste=1.0)
    plain = torch.cat(list(client.features(client.exemplars, augment="prior")))
    assert not torch.allclose(plain, torch.cat(list(second_task().features(client.exemplars, augment="prior"))))
