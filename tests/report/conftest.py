"""A maker of run folders; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from fake_runs import events_of, result_of, scenario_of

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        method: str = "fedcbdr",
        seed: int = 0,
        *,
        gain: float = 0.0,
        lr: float = 0.1,
        dataset: str = "digits",
        place: str | None = None,
        names: tuple[str, ...] = ("cat", "dog", "owl", "elk"),
        folder: str | None = None,
    ) -> Path:
        path = tmp_path / "runs" / (folder or f"{method.replace('/', '_')}-{lr}-{seed}")
        path.mkdir(parents=True)
        config = {
            "method": method,
            "seed": seed,
            "data": {"name": dataset} | ({"path": place} if place else {}),
            "train": {"lr": lr},
            "scenario": {"tasks": 2},
        }
        config["run"] = {"out": str(path)}
        result = result_of(method, seed, gain, dataset)
        (path / "config.toml").write_text(tomli_w.dumps(config))
        (path / "env.json").write_text(json.dumps({"fedfeat": "0.1.0", "gpu": None}))
        (path / "scenario.json").write_text(json.dumps(scenario_of(seed, names)))
        (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events_of(result)))
        (path / "result.json").write_text(json.dumps(result))
        return path

    return make
