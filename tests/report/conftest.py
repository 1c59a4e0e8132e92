"""Run folders made of numbers, as a finished run leaves them; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

MakeRun = Callable[..., Path]


def result_of(method: str, seed: int, gain: float, dataset: str) -> dict[str, Any]:
    plain = [[90.0 + seed], [50.0 + seed, 95.0]]
    corrected = [[90.0 + seed], [50.0 + seed + gain, 95.0]]
    return {
        "method": method,
        "dataset": dataset,
        "seed": seed,
        "final_accuracy": 72.5 + seed + gain / 2,
        "final_accuracy_uncorrected": 72.5 + seed,
        "accuracy_after_task": [90.0 + seed, 72.5 + seed + gain / 2],
        "accuracy_after_task_uncorrected": [90.0 + seed, 72.5 + seed],
        "accuracy_matrix": corrected,
        "accuracy_matrix_uncorrected": plain,
        "average_incremental_accuracy": 81.25 + seed,
        "forgetting": 40.0 - gain,
        "backward_transfer": gain - 40.0,
        "bytes_up": 2_000_000 + seed,
        "bytes_down": 3_500_000,
        "traffic": {"up/train/weights": 2_000_000 + seed, "down/train/weights": 3_500_000},
        "images_per_second": 1000.0 + seed,
        "seconds": 1.5,
    }


def events_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    events = []
    for task in (1, 2):
        for round in (1, 2):
            losses = {"ce": 1.0 / round, "gsa": 0.1} if task == 2 else {"ce": 1.0 / round}
            events.append(
                {"event": "round", "task": task, "round": round, "losses": losses, "images_per_second": 900.0}
            )
        old = None if task == 1 else result["accuracy_matrix"][1][0]
        old_plain = None if task == 1 else result["accuracy_matrix_uncorrected"][1][0]
        events.append(
            {
                "event": "task",
                "task": task,
                "accuracy": result["accuracy_after_task"][task - 1],
                "accuracy_uncorrected": result["accuracy_after_task_uncorrected"][task - 1],
                "per_task": result["accuracy_matrix"][task - 1],
                "per_task_uncorrected": result["accuracy_matrix_uncorrected"][task - 1],
                "head_tail": [95.0, old],
                "head_tail_uncorrected": [95.0, old_plain],
            }
        )
    return events


def scenario_of(seed: int, names: tuple[str, ...]) -> dict[str, Any]:
    spread = {"min": 1, "median": 2.0, "max": 3}
    tasks = [
        {
            "task": t + 1,
            "classes": list(names[2 * t : 2 * t + 2]),
            "samples": 12,
            "present": 3 - (t == 0),
            "participants_per_round": 2,
            "samples_per_client": spread,
            "classes_per_client": spread,
            "exemplars_per_client": spread,
            "clients": [{"client": k, "counts": [k + 1, 0]} for k in range(3 - (t == 0))],
        }
        for t in range(2)
    ]
    return {"seed": seed, "num_clients": 3, "tasks": tasks}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        method: str = "fedcbdr",
        seed: int = 0,
        *,
        gain: float = 0.0,
        lr: float = 0.1,
        dataset: str = "digits",
        names: tuple[str, ...] = ("cat", "dog", "owl", "elk"),
        folder: str | None = None,
    ) -> Path:
        path = tmp_path / "runs" / (folder or f"{method.replace('/', '_')}-{lr}-{seed}")
        path.mkdir(parents=True)
        config = {
            "method": method,
            "seed": seed,
            "data": {"name": dataset},
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
