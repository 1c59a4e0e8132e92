"""The analytic classifier: the ridge solution of all images in one place, from sums that clients send once per task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fedfeat.algorithm import registry
from fedfeat.algorithm.method import Method, Prediction
from fedfeat.cli.progress import RunProgress
from fedfeat.core.errors import ConfigError
from fedfeat.methods.analytic import FeatureSums, feature_sums, ridge_solution
from fedfeat.report.run import read_run
from fedfeat.report.watch import progress as progress_of
from fedfeat.runs.experiment import resume, start
from toy import NUM_CLASSES, toy_config, toy_dataset, write_toy
from toy_runs import Run, run_toy

RIDGE, DIM = 1e-4, 16
TRIANGLE = DIM * (DIM + 1) // 2
ORDERS = [tuple(range(NUM_CLASSES)), (4, 0, 5, 2, 1, 3)]


def sums_of(run: Run) -> FeatureSums:
    return FeatureSums(*(run.progress.tensors[name] for name in FeatureSums._fields))


def pooled(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares on all images at once, the penalty as further rows: another way than normal equations."""
    count, dim = features.shape
    penalty = RIDGE * (features**2).sum() / dim
    rows = np.block([[features, np.ones((count, 1))], [np.sqrt(penalty) * np.eye(dim), np.zeros((dim, 1))]])
    targets = np.vstack([np.eye(NUM_CLASSES)[labels], np.zeros((dim, NUM_CLASSES))])
    solution = np.linalg.lstsq(rows, targets, rcond=None)[0]
    return solution[:-1].T, solution[-1]


def test_a_solution_by_hand() -> None:
    """Two points on a line, one of each class: the penalty is 0.5 * (1 + 9) / 1 = 5, the centred sum of squares 2."""
    sums = feature_sums(torch.tensor([[1.0], [3.0]]).double(), torch.tensor([0, 1]), 2)
    assert [t.tolist() for t in sums] == [[10.0], [[1.0], [3.0]], [1, 1]]
    weight, bias = ridge_solution(sums, 0.5)
    assert weight.flatten().tolist() == pytest.approx([-1 / 7, 1 / 7])
    assert bias.tolist() == pytest.approx([0.5 + 2 / 7, 0.5 - 2 / 7])


def test_features_of_zero_leave_the_frequencies_of_the_classes() -> None:
    weight, bias = ridge_solution(feature_sums(torch.zeros(4, 3).double(), torch.tensor([0, 0, 0, 2]), 3), 0.1)
    assert not weight.any()
    assert bias.tolist() == [0.75, 0.0, 0.25]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_toy(tmp_path_factory.mktemp("reference"), "analytic")


@pytest.mark.parametrize("order", ORDERS, ids=["natural", "mixed"])
@pytest.mark.parametrize("clients", [1, 5, 50])
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_the_solution_is_that_of_all_images_in_one_place(
    partition: str, clients: int, order: tuple[int, ...], reference: Run, tmp_path: Path
) -> None:
    scenario = {
        "partition": partition,
        "clients": clients,
        "min_samples": 0,
        "class_order": list(order),
        "shards_per_client": 1,
    }
    run = run_toy(tmp_path, "analytic", scenario=scenario)
    engine, scene = reference.experiment.engine, run.experiment.scenario
    images = reference.experiment.engine.train_images
    with torch.no_grad():  # all in one batch, in the order of the data set
        features = engine.network.eval().features(images.plain(torch.arange(len(images)))).double().numpy()
    expected = pooled(features, scene.internal_labels(toy_dataset().train_labels))
    for ours, theirs in zip(ridge_solution(sums_of(run), RIDGE), expected, strict=True):
        assert np.linalg.norm(ours.numpy() - theirs) / np.linalg.norm(theirs) < 1e-8
    values = run.experiment.engine.model.named_values()
    np.testing.assert_array_equal(values["head.weight"], ridge_solution(sums_of(run), RIDGE)[0].float())
    # What is sent: the triangle, and a class id, a count and a sum for each class that a client holds in a task.
    labels = toy_dataset().train_labels
    held = [{int(c) for c in labels[scene.samples(t, k)]} for t in range(3) for k in range(clients)]
    assert run.result["traffic"] == {
        "up/feature_sums/gram": 8 * TRIANGLE * sum(map(bool, held)),
        "up/feature_sums/held_classes": 8 * sum(map(len, held)),
        "up/feature_sums/class_counts": 8 * sum(map(len, held)),
        "up/feature_sums/class_sums": 8 * DIM * sum(map(len, held)),
    }


def test_old_classes_are_not_touched_by_forgetting(reference: Run, tmp_path: Path) -> None:
    """After three tasks the classifier is the one that a single task with all classes gives."""
    once = run_toy(tmp_path, "analytic", scenario={"tasks": 1})
    torch.testing.assert_close(sums_of(once), sums_of(reference), rtol=1e-12, atol=1e-12)
    assert once.result["confusion"] == reference.result["confusion"]


def test_a_run_says_what_it_does_and_counts_tasks(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    config = toy_config("analytic", data={"path": str(write_toy(tmp_path / "toy.npz"))})
    start(config, tmp_path / "run", (RunProgress(console),))
    shown = console.export_text()
    assert "analytic on npz: 3 tasks, 3 clients" in shown
    assert "the backbone is freshly initialised" in shown
    assert "images/s" not in shown
    run = read_run(tmp_path / "run")
    assert run.missing == ()
    assert (len(run.tasks), run.rounds) == (3, ())


def test_an_interrupted_run_goes_on_after_its_last_task(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(event: Any) -> None:
        if event["event"] == "task" and event["task"] == 3:
            raise Stop

    config = toy_config("analytic", data={"path": str(write_toy(tmp_path / "toy.npz"))})
    with pytest.raises(Stop):
        start(config, tmp_path / "run", (stop,))
    (tmp_path / "run" / "events.jsonl").write_bytes(
        b"".join((tmp_path / "run" / "events.jsonl").read_bytes().splitlines(keepends=True)[:-1])
    )
    shown = progress_of(read_run(tmp_path / "run"))
    assert (shown["done"], shown["all"], shown["text"]) == (2, 3, "task 2 of 3 finished")
    console = Console(record=True, width=200)
    resume(tmp_path / "run", (RunProgress(console),))
    assert "resuming after task 2" in console.export_text()


def test_what_does_not_train_has_no_update_to_clip() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.clip: 'analytic' trains nothing.*; leave"):
        toy_config("analytic", privacy={"clip": 1.0})


def test_an_addon_that_only_predicts_composes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Reversed(Prediction):
        def __call__(self, network: Any, outputs: Any, seen: Any, known: Any) -> torch.Tensor:
            return -outputs.logits

    def reverse(method: Method, settings: Any) -> Method:
        """Predict what is least likely."""
        return replace(method, predict=Reversed())

    monkeypatch.setattr(registry, "PARTS", dict(registry.PARTS))
    registry.addon("reversed")(reverse)
    method = registry.compose("analytic+reversed", {})
    assert (method.name, method.trains) == ("analytic+reversed", False)
