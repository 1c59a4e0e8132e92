"""Clients with a pre-trained backbone of their own: the bytes of a simulation, and no part for other weights."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from federations import comparable
from local_grid import LocalGrid, local_nodes
from test_engine import federated

from fedfeat.federation.exchange import TooFewClients
from fedfeat.runs.experiment import start
from toy import toy_config, write_toy
from toy_runs import weights
from vision_models import VIT, save_model

pytestmark = pytest.mark.slow


def test_same_bytes_as_in_process_from_a_folder_elsewhere(tmp_path: Path) -> None:
    data = {"path": str(write_toy(tmp_path / "toy.npz"))}
    here = save_model(tmp_path / "here")
    there = shutil.copytree(here, tmp_path / "there")
    changes = {"model": {"name": "hf", "path": str(here)}, "train": {"batch": 16, "rounds": 1}, "data": data}
    expected = start(toy_config("herding+feat", **changes), tmp_path / "run")
    grid = LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz", model=str(there)))
    result = federated(toy_config("herding+feat", **changes, engine={"name": "flower"}), tmp_path / "fed", grid)
    assert comparable(result) == comparable(expected)
    assert weights(tmp_path / "fed") == weights(tmp_path / "run")


def test_a_client_with_other_weights_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_toy(tmp_path / "toy.npz")
    here = save_model(tmp_path / "here")
    other = save_model(tmp_path / "other", **{**VIT, "num_attention_heads": 4})
    changes = {"model": {"name": "hf", "path": str(here)}, "data": {"path": str(tmp_path / "toy.npz")}}
    config = toy_config("finetune", **changes, engine={"name": "flower"}, federation={"wait": 0.1})
    grid = LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz", model=str(other)))
    with caplog.at_level(logging.WARNING, "fedfeat"), pytest.raises(TooFewClients):
        federated(config, tmp_path / "fed", grid)
    assert "the model in its folder is not the server's" in caplog.text
