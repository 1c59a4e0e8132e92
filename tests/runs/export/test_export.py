"""Exported files, run by ONNX Runtime and libtorch, predict what our own model does."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from exported_files import metadata_of
from fedfeat.algorithm.step import Known, Seen
from fedfeat.cli.predict import export
from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods.clip2fl.stand_in import teacher_settings
from fedfeat.models import Network, Outputs
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.export import FORMATS, ExportError, export_model
from fedfeat.runs.export.formats import PredictionGraph
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.trained import Trained, load_trained
from toy import toy_dataset, toy_table

absent = any(find_spec(package) is None for package in ("onnxruntime", "onnxscript"))
pytestmark = [
    *(pytest.mark.slow, pytest.mark.xdist_group("export")),  # they share a run
    pytest.mark.skipif(absent, reason="needs the extra 'export'"),
]
DATA = toy_dataset()
SMALL = [
    ("replay", {}, ["none"]),
    ("herding+feat", {"feat": {"logits": "raw"}}, ["none", "egc"]),
    ("herding+feat+calibrate", {"feat": {"logits": "cosine", "etf": {"growth": "preallocated"}}}, ["egc", "calibrate"]),
    ("replay+calibrate", {}, ["calibrate"]),
    ("herding+etf+ncm", {"feat": {"feature_head": "mlp"}}, ["none", "ncm"]),
    ("herding+fedfsa", {}, ["none"]),
    ("analytic", {}, ["none"]),
]


def trained(folder: Path, method: str, **changes: Any) -> Trained:
    table = toy_table(method=method, scenario={"tasks": 2, "budget": 60}, **changes)
    experiment = Experiment(make_config(table), DATA)
    experiment.run(RunFolder.create(folder, experiment.config, {}), Progress(), ())
    return load_trained(folder)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("export") / "run", "replay")


def assert_same(model: Trained, path: Path, format: str, correction: str) -> None:
    exported = export_model(model, path, format, correction)
    assert exported.difference < 1e-5
    predict = FORMATS[format].load(path)
    for images in (DATA.test_images, DATA.test_images[:1]):
        ours = model.predict(images, correction)
        logits, probabilities = predict(torch.from_numpy(images))
        torch.testing.assert_close(logits, ours.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(probabilities, ours.probabilities, rtol=1e-4, atol=1e-5)
    metadata = metadata_of(path, format)
    assert json.loads(metadata["class_names"]) == list(model.class_names)
    assert metadata["correction"] == (exported.correction if correction == "own" else correction)
    assert "uint8 images [N, 8, 8, 1]" in metadata["input"]


@pytest.mark.parametrize(("method", "settings", "corrections"), SMALL, ids=[row[0] for row in SMALL])
def test_files_of_small_networks_predict_the_same(
    method: str, settings: dict[str, Any], corrections: list[str], tmp_path: Path
) -> None:
    model = trained(tmp_path / "run", method, **settings)
    folder = tmp_path / "deeper"
    for format in FORMATS:
        for correction in corrections:
            assert_same(model, folder / f"{correction}.{format}", format, correction)
    assert {p.name for p in folder.iterdir()} == {f"{c}.{f}" for c in corrections for f in FORMATS}
    logits = [model.predict(DATA.test_images, correction).logits for correction in corrections]
    assert not any(torch.allclose(*pair) for pair in combinations(logits, 2)), "a correction changes something"


def test_files_of_resnet18_predict_the_same(tmp_path: Path) -> None:
    train, run = {"rounds": 1, "local_epochs": 1, "batch": 24}, {"checkpoint_seconds": 3600}
    model = trained(tmp_path / "run", "herding+feat", model={"name": "resnet18", "norm": "group"}, train=train, run=run)
    for format in FORMATS:
        assert_same(model, tmp_path / format, format, "egc")
        parameters = 4 * sum(p.numel() for p in model.network.parameters())
        assert parameters < (tmp_path / format).stat().st_size < 1.05 * parameters


def test_a_classifier_that_a_server_retrained_is_exported(tmp_path: Path) -> None:
    teacher = teacher_settings(tmp_path, DATA).model_dump(by_alias=True, exclude_none=True)
    model = trained(tmp_path / "run", "herding+clip2fl", clip2fl=teacher)
    assert not torch.equal(*(model.predict(DATA.test_images, c).logits for c in ("none", "own")))
    assert_same(model, tmp_path / "model.onnx", "onnx", "own")


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_differs_is_refused_and_not_left_behind(
    format: str, replay: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = PredictionGraph.forward

    def wrong(graph: PredictionGraph, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, probabilities = forward(graph, images)
        return logits * 1.01, probabilities

    monkeypatch.setattr(PredictionGraph, "forward", wrong)
    out = tmp_path / "out"
    with pytest.raises(ExportError, match=r"not written.*differs from ours by 0\.01"):
        export_model(replay, out / "model", format)
    assert list(out.iterdir()) == []


def branching(network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
    """A prediction that no graph can hold: what it does depends on the values it sees."""
    return outputs.logits if bool(outputs.features.mean() > 1e9) else -outputs.logits * len(outputs.logits)


@pytest.mark.parametrize("format", FORMATS)
def test_a_prediction_that_cannot_be_exported_is_refused(format: str, replay: Trained, tmp_path: Path) -> None:
    odd = replace(replay, method=replace(replay.method, predict=branching))
    with pytest.raises(ExportError, match="--correction none"):
        export_model(odd, tmp_path / "model", format)
    export_model(odd, tmp_path / "model", format, "none")


def test_a_folder_in_the_way_is_named_and_left_alone(replay: Trained, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ExportError, match=r"/model: expected a file to write, got a folder.*/model/model\.pt"):
        export_model(replay, tmp_path / "model", "torchscript")
    assert list((tmp_path / "model").iterdir()) == []


def test_the_command_writes_what_the_name_of_the_file_says(tmp_path: Path) -> None:
    trained(tmp_path / "run", "replay")
    for name, kind in (("model.pt", "torchscript"), ("model.onnx", "onnx")):
        export(tmp_path / "run", tmp_path / name)
        assert metadata_of(tmp_path / name, kind)["method"] == "replay"


def test_unknown_formats_and_corrections_are_refused(replay: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'onnx'"):
        export_model(replay, tmp_path / "model", "onx")
    with pytest.raises(ConfigError, match="has no 'egc'"):
        export_model(replay, tmp_path / "model", "onnx", "egc")
