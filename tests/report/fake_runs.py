"""Run folders made of numbers, as a finished run leaves them; nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w


def write_run(
    parent: Path,
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
    """Write the folder of a finished run below ``parent``."""
    path = parent / (folder or f"{method.replace('/', '_')}-{lr}-{seed}")
    path.mkdir(parents=True)
    config = {
        "method": method,
        "seed": seed,
        "data": {"name": dataset} | ({"path": place} if place else {}),
        "train": {"lr": lr},
        "scenario": {"tasks": 2},
        "run": {"out": str(path)},
    }
    result = result_of(method, seed, gain, dataset)
    (path / "config.toml").write_text(tomli_w.dumps(config))
    (path / "env.json").write_text(json.dumps({"fedfeat": "0.1.0", "gpu": None}))
    (path / "scenario.json").write_text(json.dumps(scenario_of(seed, names)))
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events_of(result)))
    (path / "result.json").write_text(json.dumps(result))
    return path


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
        "confusion": confusion_of(50 + gain),
        "confusion_uncorrected": confusion_of(50),
    }


def confusion_of(right: float) -> list[list[int]]:
    """Old classes are right in so many of a hundred images and taken for the last class otherwise."""
    kept = int(right)
    return [[kept, 0, 0, 100 - kept], [0, kept, 0, 100 - kept], [0, 0, 95, 5], [0, 0, 5, 95]]


def events_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    events = []
    for task in (1, 2):
        for round in (1, 2):
            losses = {"ce": 1.0 / round, "gsa": 0.1} if task == 2 else {"ce": 1.0 / round}
            events.append(
                {
                    "event": "round",
                    "task": task,
                    "round": round,
                    "losses": losses,
                    "client_losses": {str(k): task + k / 10 for k in range(2 if round == 1 else 1)},
                    "bytes_up": 500_000,
                    "bytes_down": 250_000 * task,
                    "images_per_second": 900.0,
                }
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
                "per_class": [90.0, 90.0] if task == 1 else [old - 10, old + 10, 95.0, 95.0],
                "per_class_uncorrected": [90.0, 90.0] if task == 1 else [old_plain - 10, old_plain + 10, 95.0, 95.0],
                "energies": energies() if task == 2 else None,
            }
        )
    return events


def energies() -> dict[str, Any]:
    """Four bins; earlier classes lie low in the head's span, the prior between them and the newest."""
    head = {"of_tail": [6, 2, 0, 0], "of_head": [0, 1, 3, 4], "prior": 0.3}
    return {"head": head, "tail": {"of_tail": [0, 0, 4, 4], "of_head": [8, 0, 0, 0], "prior": 0.7}}


def with_calibration(path: Path, before: float) -> Path:
    """Let a run also tell of EGC before calibration: right in ``before`` percent of task 1 at the end."""
    result = json.loads((path / "result.json").read_text())
    first = result["accuracy_after_task"][0]
    matrix = [[first], [before, 95.0]]
    result |= {
        "accuracy_of_variants": {"before calibration": [first, (before + 95.0) / 2]},
        "accuracy_matrix_of_variants": {"before calibration": matrix},
        "confusion_of_variants": {"before calibration": confusion_of(before)},
    }
    (path / "result.json").write_text(json.dumps(result))
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "task":
            row = matrix[event["task"] - 1]
            classes = [first] * 2 if len(row) == 1 else [before, before, 95.0, 95.0]
            numbers = {"accuracy": sum(row) / len(row), "per_task": row, "per_class": classes}
            tail = None if len(row) == 1 else before
            event["variants"] = {"before calibration": {**numbers, "head_tail": [95.0, tail]}}
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return path


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
