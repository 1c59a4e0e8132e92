"""The engine, the clients and their memory in one process: the same bytes as in simulation, for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from local_grid import LocalGrid, local_sites

from fedfeat.config import Config
from fedfeat.experiment import Result, start
from fedfeat.federation.runfolder import RunFolder
from fedfeat.flower.server_app import run_in
from fedfeat.methods.registry import all_methods
from toy import toy_config, untimed, write_toy


def weights(folder: Path) -> bytes:
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    return loaded[0].weights.numpy().tobytes()


def both(method: str, tmp_path: Path, **changes: Any) -> tuple[Config, Config]:
    """Return the same experiment for the two engines."""
    write_toy(tmp_path / "toy.npz")
    changes["data"] = {"path": str(tmp_path / "toy.npz")}
    engine = {"name": "flower"}
    return toy_config(method, **changes), toy_config(method, engine=engine, **changes)


def federated(config: Config, folder: Path, grid: LocalGrid) -> Result:
    RunFolder.create(folder, config, {})
    return run_in(folder, grid)


def comparable(result: Result) -> Result:
    config = {k: v for k, v in result["config"].items() if k != "engine"}
    return {**untimed(result), "config": config}


@pytest.mark.parametrize("method", all_methods())
def test_same_bytes_as_in_process(method: str, tmp_path: Path) -> None:
    here, there = both(method, tmp_path)
    expected = start(here, tmp_path / "here")
    grid = LocalGrid(local_sites(tmp_path, tmp_path / "toy.npz"))
    result = federated(there, tmp_path / "there", grid)
    assert comparable(result) == comparable(expected)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    events = [
        [e for e in RunFolder.open(tmp_path / name).events() if e["event"] == "task"] for name in ("here", "there")
    ]
    assert events[0] == events[1]
    assert torch.get_num_threads() == 1
