"""The engine, the clients and their memory in one process: the same bytes as in simulation, for every part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from federations import comparable
from local_grid import LocalGrid, local_nodes

from fedfeat.config.config import Config
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.codec import pack
from fedfeat.engines.flower.engine import FlowerEngine
from fedfeat.engines.flower.messages import Channel, Reply
from fedfeat.runs.experiment import Experiment, Result, start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy import each_part_once, toy_config, write_toy
from toy_runs import weights

pytestmark = pytest.mark.slow


def both(method: str, tmp_path: Path, **changes: Any) -> tuple[Config, Config]:
    """Return the same experiment for the two engines."""
    write_toy(tmp_path / "toy.npz")
    changes |= {"data": {"path": str(tmp_path / "toy.npz")}, "train": {"local_epochs": 1}}
    engine = {"name": "flower"}
    return toy_config(method, **changes), toy_config(method, engine=engine, **changes)


def federated(config: Config, folder: Path, grid: LocalGrid) -> Result:
    RunFolder.create(folder, config, {})
    return run_in(folder, grid)


def test_every_tensor_of_a_reply_comes_to_the_servers_device(tmp_path: Path) -> None:
    _, config = both("finetune+scaffold", tmp_path)
    (tmp_path / "run").mkdir()

    def engine(*parts: Any) -> FlowerEngine:
        return FlowerEngine(*parts, channel=Channel(LocalGrid({})), folder=tmp_path / "run")

    made = Experiment(config, engine=engine).engine
    assert isinstance(made, FlowerEngine)
    weights = made.begin_task(0)
    made.device = torch.device("meta")
    payload: Payload = {"weights": weights, "samples": 3, "loss.first_epoch": 0.5}
    payload["control_change"] = torch.zeros(made.model.num_trainable)
    header = {"generation": 1, "exemplars": 0, "seconds": 0.1}
    reply = made._read(0, "train", {"weights": weights}, Reply(header, pack(payload), 0.1))
    assert isinstance(reply, dict)
    assert {k: str(v.device) for k, v in reply.items() if isinstance(v, torch.Tensor)} == {
        "weights": "meta",
        "control_change": "meta",
    }


@pytest.mark.parametrize("method", each_part_once())
def test_same_bytes_as_in_process(method: str, tmp_path: Path) -> None:
    here, there = both(method, tmp_path)
    expected = start(here, tmp_path / "here")
    grid = LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz"))
    result = federated(there, tmp_path / "there", grid)
    assert comparable(result) == comparable(expected)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    events = [
        [e for e in RunFolder.open(tmp_path / name).events() if e["event"] == "task"] for name in ("here", "there")
    ]
    assert events[0] == events[1]
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("rule", ["median", "multi_krum"])
def test_robust_rules_are_the_same_on_both_engines(rule: str, tmp_path: Path) -> None:
    here, there = (
        c.model_copy(update={"train": c.train.model_copy(update={"robust": rule})})
        for c in both("fedcbdr+feat", tmp_path)
    )
    start(here, tmp_path / "here")
    federated(there, tmp_path / "there", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz")))
    assert weights(tmp_path / "there") == weights(tmp_path / "here")


@pytest.mark.parametrize(
    "stream",
    [
        {"scenario": {"blurry": 0.3}},
        {"scenario": {"leaves": {"2": 3}}},
        {"scenario": {"lag": {"1": 1}}},
        {"scenario": {"brings": "domains", "tasks": 4}, "data": {"name": "digits-domains", "path": None}},
    ],
    ids=["blurry", "leaves", "lag", "domains"],
)
def test_every_stream_of_images_is_the_same_on_both_engines(stream: dict[str, Any], tmp_path: Path) -> None:
    here, there = (
        c.model_copy(update={"data": c.data.model_copy(update=stream.get("data", {}))})
        for c in both("fedcbdr+etf+balanced+distil", tmp_path, scenario=stream["scenario"])
    )
    expected = start(here, tmp_path / "here")
    data = None if "data" in stream else tmp_path / "toy.npz"
    result = federated(there, tmp_path / "there", LocalGrid(local_nodes(tmp_path, data)))
    assert comparable(result) == comparable(expected)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    ours, theirs = (
        [e for e in RunFolder.open(tmp_path / n).events() if e["event"] == "task"] for n in ("here", "there")
    )
    assert ours == theirs, "exemplars of clients that left are gone on both"
