"""The CUDA engine beside the in-process engine; these need an NVIDIA GPU and are skipped elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.data.dataset import Augmentation, Dataset
from fedfeat.errors import ConfigError
from fedfeat.experiment import Experiment
from fedfeat.federation.runfolder import RunFolder
from fedfeat.federation.server import Progress
from fedfeat.methods.registry import all_methods
from toy import toy_config, toy_dataset

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def larger(dataset: Dataset) -> Dataset:
    """Every pixel four times: ResNet-18 then ends in a map of 2x2, and BatchNorm can train on one sample."""
    train, test = (i.repeat(2, axis=1).repeat(2, axis=2) for i in (dataset.train_images, dataset.test_images))
    return replace(dataset, train_images=train, test_images=test)


def run(folder: Path, method: str, engine: dict[str, Any], **changes: Any) -> tuple[Progress, dict[str, Any]]:
    config = toy_config(method, engine={"device": "cuda", **engine}, **changes)
    experiment = Experiment(config, larger(toy_dataset(Augmentation(1, True, 0.2))))
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, config, {}), progress, ())
    return progress, result


def difference(a: Progress, b: Progress) -> float:
    return float((a.weights - b.weights).norm() / b.weights.norm())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_engine_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        Experiment(toy_config("finetune", engine={"name": "cuda", "device": "cpu"}), toy_dataset())


@gpu
@pytest.mark.parametrize("method", ["finetune", "fedcbdr", "fedcbdr+feat", "refed+feat", "fedcbdr+feat+calibrate"])
@pytest.mark.parametrize("model", ["small-cnn", "resnet18"])
def test_full_precision_agrees_with_the_engine_in_process(tmp_path: Path, method: str, model: str) -> None:
    # Batches of 7 leave remainders of many sizes, of one sample too.
    changes = {"model": {"name": model}, "train": {"batch": 7, "rounds": 2}, "scenario": {"tasks": 2}}
    ours, result = run(tmp_path / "a", method, {"name": "cuda", "compile": False}, **changes)
    theirs, reference = run(tmp_path / "b", method, {"name": "inprocess"}, **changes)
    assert difference(ours, theirs) < 1e-4
    assert abs(result["final_accuracy"] - reference["final_accuracy"]) <= 2
    assert result["traffic"] == reference["traffic"]


@gpu
@pytest.mark.parametrize("engine", [{"precision": "fp32", "compile": False}, {"precision": "bf16"}])
def test_the_same_run_twice_has_the_same_bytes(tmp_path: Path, engine: dict[str, Any]) -> None:
    runs = [run(tmp_path / str(n), "fedcbdr+feat", {"name": "cuda", **engine}) for n in range(2)]
    assert torch.equal(runs[0][0].weights, runs[1][0].weights)


@gpu
@pytest.mark.parametrize("replicas", [2, 3])
def test_the_number_of_replicas_changes_nothing(tmp_path: Path, replicas: int) -> None:
    ours, _ = run(tmp_path / "a", "fedcbdr+feat", {"name": "cuda", "compile": False, "replicas": replicas})
    theirs, _ = run(tmp_path / "b", "fedcbdr+feat", {"name": "cuda", "compile": False, "replicas": 1})
    assert torch.equal(ours.weights, theirs.weights)


@gpu
@pytest.mark.parametrize("method", all_methods())
def test_every_method_runs(tmp_path: Path, method: str) -> None:
    changes = {"scenario": {"tasks": 2}, "train": {"rounds": 1}}
    ours, result = run(tmp_path / "run", method, {"name": "cuda", "compile": False}, **changes)
    assert torch.isfinite(ours.weights).all()
    assert len(result["accuracy_matrix"]) == 2
