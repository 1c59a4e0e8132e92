"""Energies of test features: shares by explicit projection, priors on the same scale, every test image once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedfeat.algorithm.method import EnergyMeasure, Method
from fedfeat.algorithm.step import Known, Seen
from fedfeat.federation.evaluation import BINS, EnergyMeter
from fedfeat.models import ETFHead
from toy_runs import run_toy

SEEN = Seen(task=1, num_old=2, num_classes=5)
NOTHING = Known({}, {})


def etf_method(**settings: object) -> Method:
    return Method("etf", has_etf_head=True, energies=EnergyMeasure(priors=("prior_head", "prior_tail"), **settings))


@pytest.fixture
def network():
    head = ETFHead(8, seed=3)
    head.grow(5)
    return SimpleNamespace(head=head)


def projected_share(features: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    """Return the share of squared length that a least-squares projection keeps."""
    projector = prototypes @ np.linalg.pinv(prototypes)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    return ((unit @ projector.T) ** 2).sum(axis=1)


def test_histograms_are_those_of_explicit_projections(network):
    torch.manual_seed(0)
    features, labels = torch.randn(300, 8), torch.randint(0, 5, (300,))
    meter = EnergyMeter.of(network, etf_method(), SEEN, NOTHING)
    for part in torch.split(torch.arange(300), 77):
        meter.add(features[part], labels[part])
    counts = meter.read().counts
    etf = network.head.prototypes.numpy().astype(float)
    for span, prototypes in enumerate((etf[:, 2:], etf[:, :2])):
        shares = projected_share(features.numpy().astype(float), prototypes)
        for group, mine in enumerate((labels.numpy() < 2, labels.numpy() >= 2)):
            expected = np.histogram(shares[mine], bins=BINS, range=(0, 1))[0]
            assert np.abs(counts[span, group] - expected).sum() <= 2  # one feature on the edge of a bin
    assert counts.sum(axis=(1, 2)).tolist() == [300, 300]


def test_a_feature_on_a_prototype_lies_in_the_last_bin(network):
    meter = EnergyMeter.of(network, etf_method(), SEEN, NOTHING)
    meter.add(3 * network.head.prototypes.T[[0, 4]], torch.tensor([0, 4]))
    record = meter.read().record()
    assert record["tail"]["of_tail"][-1] == 1
    assert record["head"]["of_head"][-1] == 1
    assert record["head"]["of_tail"][-1] == record["tail"]["of_head"][-1] == 0


@pytest.mark.parametrize(("norm", "ranks"), [("minus_one", (2, 1)), ("true_rank", (3, 2)), ("none", (1, 1))])
def test_priors_become_shares(network, norm, ranks):
    known = Known({"prior_head": 0.2, "prior_tail": 0.3}, {})
    prior = EnergyMeter.of(network, etf_method(rank_norm=norm), SEEN, known).read().prior
    assert prior == pytest.approx({"head": 0.2 * ranks[0], "tail": 0.3 * ranks[1]})


def test_nothing_is_measured_without_a_frame_or_without_old_classes(network):
    assert EnergyMeter.of(network, Method("linear"), SEEN, NOTHING) is None
    assert EnergyMeter.of(network, etf_method(), Seen(0, 0, 5), NOTHING) is None
    assert EnergyMeter.of(network, etf_method(), SEEN, NOTHING).read().record()["head"].keys() == {"of_tail", "of_head"}


def test_a_run_tells_of_every_test_image_once_per_span(tmp_path: Path):
    run_toy(tmp_path, "herding+feat")
    lines = (tmp_path / "herding-feat" / "events.jsonl").read_text().splitlines()
    tasks = [e for e in map(json.loads, lines) if e["event"] == "task"]
    assert tasks[0]["energies"] is None
    for number, event in enumerate(tasks[1:], start=1):  # two classes a task, ten test images each
        for span in ("head", "tail"):
            found = event["energies"][span]
            assert (sum(found["of_tail"]), sum(found["of_head"])) == (20 * number, 20)
            assert 0 < found["prior"] < 1
