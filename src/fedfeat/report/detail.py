"""One run in detail: what is not averaged over seeds, because every seed has its own classes and clients."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np

from fedfeat.report.compact import percents, significant, thinned
from fedfeat.report.group_data import task_starts
from fedfeat.report.predictions import Prediction, predictions
from fedfeat.report.records import EnergiesRecord, ScenarioRecord, TaskRecord
from fedfeat.report.run import Run

Data = dict[str, Any]
MOST_PICTURE_BYTES = 1_000_000


def run_detail(run: Run) -> Data:
    """Return a run's confusion tables, energies, clients and pictures."""
    found = predictions(run)
    return {
        "seed": run.seed,
        "folder": str(run.path),
        "finished": run.finished,
        "confusion": {kind: p.confusion for kind, p in found.items() if p.confusion},
        "energies": [_energies(task, task.energies) for task in run.tasks if task.energies],
        "clients": _client_accuracies(run.scenario, found) if run.scenario else {},
        "client_losses": client_losses(run),
        "pictures": pictures(run),
    }


def _energies(task: TaskRecord, found: EnergiesRecord) -> Data:
    return {"task": task.task, **found.model_dump()}


def _client_accuracies(scenario: ScenarioRecord, found: dict[str, Prediction]) -> Data:
    """Return, by prediction, each client's accuracy after each task."""
    tables = {kind: client_accuracies(scenario, p.per_class) for kind, p in found.items()}
    return {kind: [percents(row) for row in table] for kind, table in tables.items() if len(table)}


def client_accuracies(scenario: ScenarioRecord, per_class: Sequence[Sequence[float]]) -> np.ndarray:
    """Return [client, task]: accuracy per class after each task, weighted by the client's own mix of classes so far.

    NaN is a client that holds nothing yet. Nothing is returned where clients or accuracies are not listed.
    """
    held = client_class_counts(scenario)
    if held is None or not all(per_class):
        return np.empty((0, 0))
    table = np.full((len(held), len(per_class)), nan)
    for task, accuracies in enumerate(per_class):
        mix = held[:, : len(accuracies)]
        total = mix.sum(axis=1)
        some = total > 0
        table[some, task] = mix[some] @ np.array(accuracies)[: mix.shape[1]] / total[some]
    return table


def client_class_counts(scenario: ScenarioRecord) -> np.ndarray | None:
    """Return training samples [client, class], classes in order of arrival; None where clients are not listed."""
    if not any(task.clients for task in scenario.tasks):
        return None
    columns = []
    for task in scenario.tasks:
        counts = np.zeros((scenario.num_clients, len(task.classes)))
        for client in task.clients:
            counts[client.client] = client.counts
        columns.append(counts)
    return np.concatenate(columns, axis=1)


def client_losses(run: Run) -> Data:
    """Return each client's loss over rounds; nothing in a cell is a round without the client."""
    clients = sorted({client for r in run.rounds for client in r.client_losses})
    rows = [[r.client_losses.get(client, nan) for r in run.rounds] for client in clients]
    return {
        "clients": clients,
        "rounds": len(run.rounds),
        "task_starts": task_starts(run),
        "took_part": [sum(v == v for v in row) for row in rows],
        "losses": [significant(thinned(row, 120), 3) for row in rows],
    }


def pictures(run: Run) -> list[Data]:
    """Return the generated images that a run left, newest first, as far as a page can carry them."""
    found: list[Data] = []
    left = MOST_PICTURE_BYTES
    for path in sorted((run.path / "pictures").glob("task-*.png"), key=lambda p: (len(p.name), p.name), reverse=True):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        left -= len(content)
        source = f"data:image/png;base64,{base64.b64encode(content).decode()}" if left >= 0 else None
        found.append({"task": path.stem.removeprefix("task-"), "file": str(path), "source": source})
    return found
