"""Nearest mean of exemplars: means by hand, what is sent, and how a class that nobody holds is treated."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.algorithm.step import Known, Seen
from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods.nearest_mean import MEANS, NearestMean, joined_means, mean_cosines, unit_sums
from fedfeat.models import Outputs
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import scenario_from, toy_config, toy_dataset

ROOT_HALF = math.sqrt(0.5)


def test_sums_by_hand() -> None:
    batches = [torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[5.0, 0.0]])]
    sums = unit_sums(batches, torch.tensor([0, 2, 0]), 3)
    assert sums.tolist() == [pytest.approx([1.6, 0.8]), [0.0, 0.0], [0.0, 1.0]]


def test_long_features_count_no_more_than_short_ones() -> None:
    short, long = (unit_sums([torch.tensor([[1.0, 0.0], [0.0, s]])], torch.tensor([0, 0]), 1) for s in (1.0, 50.0))
    assert torch.allclose(short, long)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 12))
def test_means_do_not_depend_on_the_partition(seed: int, cut: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(12, 4, generator=generator), torch.randint(0, 3, (12,), generator=generator)
    whole = unit_sums([x], y, 3)
    parts = [unit_sums([x[s]], y[s], 3) for s in (slice(0, cut), slice(cut, 12)) if len(x[s])]
    counts = torch.bincount(y, minlength=3)
    joined = joined_means(sum(parts[1:], parts[0]), counts, None)
    assert torch.allclose(joined, joined_means(whole, counts, None), atol=1e-6)
    for c in range(3):
        if counts[c]:
            assert torch.allclose(joined[c], F.normalize(F.normalize(x[y == c], dim=1).mean(dim=0), dim=0), atol=1e-5)


def test_a_class_without_a_sample_keeps_its_earlier_mean() -> None:
    earlier = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    sums = torch.tensor([[0.0, 0.0], [3.0, 3.0], [0.0, 0.0]])
    means = joined_means(sums, torch.tensor([0, 4, 0]), earlier)
    assert means.tolist() == [[0.0, 1.0], pytest.approx([ROOT_HALF, ROOT_HALF]), [0.0, 0.0]]


def test_prediction_by_hand() -> None:
    means = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    cosines = mean_cosines(torch.tensor([[-3.0, -4.0], [2.0, 0.1]]), means)
    assert cosines[0].tolist() == pytest.approx([-0.6, -2.0, -0.8])
    assert cosines.argmax(dim=1).tolist() == [0, 0], "a class without a mean is never predicted"


def test_without_means_of_this_task_the_classifier_decides() -> None:
    outputs = Outputs(torch.ones(2, 2), torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))
    seen = Seen(task=1, num_old=2, num_classes=3)
    network = torch.nn.Identity()
    for tensors in ({}, {MEANS: torch.eye(2)}):
        assert torch.equal(NearestMean()(network, outputs, seen, Known({}, tensors)), outputs.logits)  # type: ignore[arg-type]


def test_a_run_measures_the_means_of_all_seen_classes_under_its_final_model(tmp_path: Path) -> None:
    config = toy_config("joint+ncm")
    experiment = Experiment(config, toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(tmp_path / "run", config, {}), progress, ())
    engine = experiment.engine
    engine.model.load(progress.weights)
    client = engine.client(0)
    labels = engine.train_images.labels
    features = torch.cat(list(client.features(torch.arange(len(labels)))))
    expected = joined_means(unit_sums([features], labels, 6), torch.bincount(labels), None)
    # Joint training keeps every image, so the federation's means are those of the whole data set.
    assert torch.allclose(progress.tensors[MEANS], expected, atol=1e-5)
    test = engine.test_images
    predicted = mean_cosines(engine.network.features(test.plain(torch.arange(60))), expected).argmax(dim=1)
    assert result["final_accuracy"] == pytest.approx(100 * float((predicted == test.labels).float().mean()))
    classes, dim = (2, 4, 6), 16
    assert result["traffic"]["up/class_sums/class_sums"] == 3 * sum(c * dim * 4 for c in classes)


def test_both_accuracies_are_reported(tmp_path: Path) -> None:
    config = toy_config("herding+ncm")
    result = Experiment(config, toy_dataset()).run(RunFolder.create(tmp_path / "a", config, {}), Progress(), ())
    plain = toy_config("herding")
    same = Experiment(plain, toy_dataset()).run(RunFolder.create(tmp_path / "b", plain, {}), Progress(), ())
    assert result["final_accuracy_uncorrected"] == same["final_accuracy"], "only the prediction differs"
    assert result["confusion"] != result["confusion_uncorrected"]


def test_clients_that_hold_nothing_send_nothing(tmp_path: Path) -> None:
    dataset = toy_dataset()
    own = [list(range(c * 24, c * 24 + 24)) for c in range(6)]
    samples = [[own[0] + own[1], []], [own[2] + own[3], []], [own[4] + own[5], []]]
    config = toy_config("replay+ncm", scenario={"clients": 2, "min_samples": 0})
    experiment = Experiment(config, dataset, scenario_from(dataset.train_labels, samples))
    progress = Progress()
    result = experiment.run(RunFolder.create(tmp_path / "run", config, {}), progress, ())
    assert result["traffic"]["up/class_sums/class_counts"] == 8 * (2 + 4 + 6), "one client of two"
    lengths = torch.linalg.vector_norm(progress.tensors[MEANS], dim=1)
    assert torch.allclose(lengths, torch.ones(6), atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="ncm takes class means over exemplars, and this base keeps none"):
        toy_config("finetune+ncm")
    with pytest.raises(ConfigError, match="ncm and another part both decide how to predict"):
        toy_config("fedcbdr+feat+ncm")
