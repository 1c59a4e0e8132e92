"""Clipping and noise are the same in process and on Flower, where clients share a public data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local_grid import NODE, LocalGrid, local_nodes
from own_images import own_config, write_owners

from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.runs import deploy
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy import toy_config, write_toy
from toy_runs import weights


@pytest.mark.parametrize("privacy", [{"clip": 0.05}, {"clip": 0.05, "noise": 0.5}], ids=["clip", "noise"])
def test_same_bytes_as_in_process(privacy: dict[str, float], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"privacy": privacy, "model": {"norm": "group"}}
    changes["data"] = {"path": str(write_toy(tmp_path / "toy.npz"))}
    here = start(toy_config("fedcbdr+feat", **changes), tmp_path / "here")
    RunFolder.create(tmp_path / "there", toy_config("fedcbdr+feat", engine={"name": "flower"}, **changes), {})
    there = run_in(tmp_path / "there", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz")))
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert there["privacy"] == here["privacy"]
    assert there["accuracy_matrix"] == here["accuracy_matrix"]


def test_owners_of_data_draw_noise_that_cannot_be_drawn_again(tmp_path: Path) -> None:
    data = write_owners(tmp_path / "data")
    config = own_config("finetune", model={"norm": "group"}, privacy={"clip": 0.1, "noise": 0.1}, train={"rounds": 1})
    results = []
    for attempt in ("one", "two"):
        nodes = {
            NODE + k: FederationClient(ClientSettings(tmp_path / attempt / name, name, device="cpu"), path)
            for k, (name, path) in enumerate(data.items())
        }
        deploy.prepare_run(config, tmp_path / attempt / "run")
        results.append(run_in(tmp_path / attempt / "run", LocalGrid(nodes)))
    assert weights(tmp_path / "one" / "run") != weights(tmp_path / "two" / "run")
    assert results[0]["privacy"]["not_covered"] == ["samples", "losses", "classes", "energies", "exemplars", "tables"]
