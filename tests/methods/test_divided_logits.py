"""FedCBDR predicts with logits divided by its temperatures; the division goes where its loss goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.algorithm.scaled import ScaledLogits, scaling_of
from fedfeat.algorithm.step import Known, Seen
from fedfeat.federation.progress import Progress
from fedfeat.methods.calibrate import DELTA, GAMMA, CalibratedPrediction
from fedfeat.methods.feat.correction import PRIOR_HEAD, EnergyCorrection
from fedfeat.models import Outputs
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset, untimed

KEEP = {"feat": {"keep_tts": True}}


def run(folder: Path, method: str, **changes: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    experiment = Experiment(toy_config(method, scenario={"budget": 30, "tasks": 2}, **changes), toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, experiment.config, {}), progress, ())
    return progress.weights, result


def test_old_and_new_logits_are_divided_each_by_its_temperature() -> None:
    logits = torch.tensor([[1.8, -0.9, 2.2, 1.1]])
    scaled = ScaledLogits(0.9, 1.1)
    assert torch.allclose(scaled.divided(logits, 2), torch.tensor([[2.0, -1.0, 2.0, 1.0]]))
    assert torch.equal(scaled.divided(logits, 0), logits)


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("fedcbdr", {}, True),
        ("fedcbdr", {"fedcbdr": {"scale_logits": False}}, False),
        ("fedcbdr+moon", {}, True),
        ("fedcbdr+fedrcl", {}, True),
        ("fedcbdr+etf", {}, False),
        ("fedcbdr+etf", KEEP, True),
        ("fedcbdr+feat", {}, False),
        ("fedcbdr+feat", KEEP, True),
        ("fedcbdr+balanced", {}, False),
        ("fedcbdr+etf+balanced", KEEP, False),
        ("fedcbdr+fedfsa", {}, False),
        ("fedcbdr+ncm", {}, False),
        ("fedcbdr+calibrate", {}, True),
        ("fedcbdr+feat+calibrate", {}, False),
        ("fedcbdr+feat+calibrate", KEEP, True),
        ("replay", {}, False),
    ],
)
def test_the_division_stays_as_long_as_the_loss_it_belongs_to(method: str, changes: Any, expected: bool) -> None:
    built = toy_config(method, **changes).build_method()
    predict = built.predict.predict if isinstance(built.predict, CalibratedPrediction) else built.predict
    found = predict.scaling if isinstance(predict, EnergyCorrection) else predict
    assert isinstance(found, ScaledLogits) is expected
    if expected and isinstance(found, ScaledLogits):
        assert (found.tau_old, found.tau_new) == (0.9, 1.1)


def test_training_is_the_same_and_the_undivided_accuracy_stays_beside_it(tmp_path: Path) -> None:
    temperatures = {"tau_old": 0.5, "tau_new": 2.0}
    divided, after = run(tmp_path / "divided", "fedcbdr", fedcbdr=temperatures)
    undivided, before = run(tmp_path / "undivided", "fedcbdr", fedcbdr={**temperatures, "scale_logits": False})
    assert torch.equal(divided, undivided)
    assert after["accuracy_matrix_uncorrected"] == before["accuracy_matrix"] == before["accuracy_matrix_uncorrected"]
    assert after["accuracy_matrix"] != before["accuracy_matrix"]
    assert after["accuracy_matrix"][0] == before["accuracy_matrix"][0]


def test_feat_without_the_loss_has_the_same_weights_and_accuracies(tmp_path: Path) -> None:
    first, one = run(tmp_path / "one", "fedcbdr+feat")
    second, other = run(tmp_path / "other", "fedcbdr+feat", fedcbdr={"scale_logits": False})
    assert torch.equal(first, second)
    assert untimed({**one, "config": {}}) == untimed({**other, "config": {}})


@pytest.mark.parametrize("method", ["fedcbdr", "fedcbdr+feat"])
def test_calibration_works_on_divided_logits(method: str) -> None:
    experiment = Experiment(toy_config(f"{method}+calibrate", **KEEP), toy_dataset())
    network = experiment.engine.network
    network.head.grow(4, 0)
    features = torch.randn(9, network.backbone.feature_dim, generator=torch.Generator().manual_seed(1))
    outputs = Outputs(features, network.head(features))
    known = Known({GAMMA: 0.0, DELTA: 0.25, PRIOR_HEAD: 0.01}, {})
    predict = experiment.method.predict
    assert predict is not None
    with torch.no_grad():
        got = predict(network, outputs, Seen(1, 2, 4), known)
        plain = network.head.cosine(features) if method.endswith("feat") else outputs.logits
        expected = ScaledLogits(0.9, 1.1).divided(plain, 2) - torch.tensor([0.0, 0.0, 0.25, 0.25])
    assert torch.allclose(got, expected, atol=1e-6)


def test_a_method_without_a_division_has_none() -> None:
    assert scaling_of(toy_config("replay").build_method()) is None
    assert scaling_of(toy_config("fedcbdr").build_method()) is not None
