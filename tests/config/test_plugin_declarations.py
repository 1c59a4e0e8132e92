"""What a plugin declares counts as what built-in methods declare: screened, stated, reported, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from exported_files import metadata_of
from fedfeat.config.config import make_config
from fedfeat.core.payload import Payload
from fedfeat.federation.screen import fault_of
from fedfeat.methods import PARTS
from fedfeat.report.page_data import page_data
from fedfeat.report.run import read_run
from fedfeat.runs.experiment import Result, start
from fedfeat.runs.export import FORMATS, export_model
from fedfeat.runs.trained import load_trained
from toy import toy_dataset, toy_table, write_toy

PLUGIN = """\
from dataclasses import replace

import torch

from fedfeat.api import Method, NoSettings, Prediction, Sent, Statistic, addon


class Confidence(Statistic):
    per_step = False

    def finish(self, client, buffers):
        return {"mine.confidence": 0.5, "mine.held": len(client.samples)}


class Cooled(Prediction):
    name, label = "cooled", "cooled down"

    def __call__(self, network, outputs, seen, known):
        offset = torch.arange(outputs.logits.shape[1], device=outputs.logits.device) < seen.num_old
        return outputs.logits / 2 + 5 * offset


@addon(
    "cool",
    sends=(
        Sent("up/train/mine.confidence", "mean confidence of the client's model", low=0, high=1),
        Sent("up/train/mine.held", "images that the client holds", kind="count"),
    ),
    prediction=Cooled,
)
def cool(method: Method, settings: NoSettings) -> Method:
    return replace(method, statistics=(*method.statistics, Confidence()), predict=Cooled())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture
def result(folder: Path) -> Result:
    """A run with a plugin whose result states what is kept private; made once."""
    if not (folder / "run" / "result.json").exists():
        (folder / "mine.py").write_text(PLUGIN)
        private = {"model": {"norm": "group"}, "privacy": {"clip": 1.0, "noise": 0.1}}
        data = {"path": str(write_toy(folder / "toy.npz"))}
        start(
            make_config(toy_table(method="replay+cool", data=data, plugins=["mine.py"], **private), folder=folder),
            folder / "run",
        )
    found: Result = json.loads((folder / "run" / "result.json").read_text())
    return found


def test_its_entries_are_in_the_privacy_statement(result: Result) -> None:
    assert result["privacy"]["not_covered"] == ["samples", "losses", "mine.confidence", "mine.held"]


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({}, None),
        ({"mine.confidence": 1.2}, "mine.confidence: expected values of at most 1, got 1.2"),
        ({"mine.held": -1}, "mine.held: expected values of at least 0, got -1"),
        ({"mine.other": 1}, "mine.other: not among what this method sends"),
    ],
)
def test_its_replies_are_screened(folder: Path, entry: Payload, fault: str | None) -> None:
    (folder / "mine.py").write_text(PLUGIN)
    method = make_config(toy_table(method="replay+cool", plugins=["mine.py"]), folder=folder).build_method()
    request: Payload = {"weights": torch.zeros(3)}
    reply: Payload = {**request, "samples": 2, "mine.confidence": 0.5, "mine.held": 2, **entry}
    sizes = {"task": 0, "trained": 3, "C": 2, "N": 2, "n": 9}
    assert fault_of("train", request, reply, method.sends, sizes) == fault


def test_its_prediction_has_its_label_in_the_report_even_where_the_plugin_is_unknown(
    result: Result, folder: Path
) -> None:
    PARTS.pop("cool", None)
    page = page_data([read_run(folder / "run")])
    assert page["choices"] == [{"key": "none", "label": "none"}, {"key": "own", "label": "cooled down"}]
    assert page["groups"][0]["own"] == "cooled down"


def test_its_prediction_is_exported_under_its_name(result: Result, folder: Path) -> None:
    trained = load_trained(folder / "run")
    assert trained.own_correction == "cooled"
    assert export_model(trained, folder / "model.pt", "torchscript", "cooled").correction == "cooled"
    images = toy_dataset().test_images[:5]
    logits, _ = FORMATS["torchscript"].load(folder / "model.pt")(torch.from_numpy(images))
    torch.testing.assert_close(logits, trained.predict(images).logits)
    assert not torch.equal(logits, trained.predict(images, "none").logits)
    assert metadata_of(folder / "model.pt", "torchscript")["correction"] == "cooled"
