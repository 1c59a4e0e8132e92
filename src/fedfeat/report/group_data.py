"""One method of a report as plain data, for every position of the switch, and each of its runs in detail.

A method is averaged over its seeds; what is not is in the detail, because every seed has its own classes and clients.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import numpy as np

from fedfeat.algorithm.tables import OWN
from fedfeat.federation.metrics import forgetting_by_task
from fedfeat.report.collect import Group, Spread
from fedfeat.report.predictions import NONE, VARIANT, PredictionRecord, labels, predictions
from fedfeat.report.records import MEGABYTE, RoundRecord, ScenarioRecord
from fedfeat.report.run import Run
from fedfeat.report.series import (
    Curve,
    loss_names,
    mean_and_std,
    mean_matrix,
    percents,
    ragged_mean,
    significant,
    thinned,
)

Data = dict[str, Any]
MOST_PICTURE_BYTES = 1_000_000
COSTS = ("megabytes_up", "megabytes_down", "images_per_second", "seconds")
INSTEAD = {NONE: (NONE,), VARIANT: (VARIANT, OWN, NONE), OWN: (OWN, NONE)}


def group_data(group: Group) -> Data:
    """Return everything the page draws of one method."""
    found = [predictions(run) for run in group.shown if run.accuracies()]
    kinds = [kind for kind in INSTEAD if any(kind in p for p in found)]
    return {
        "label": group.label,
        "name": group.name,
        "method": group.method,
        "seeds": list(group.seeds),
        "unfinished": group.unfinished,
        **labels(group.runs[0]),
        "predictions": {kind: _prediction([chosen(p, kind) for p in found]) for kind in kinds},
        "measures": {kind: _measures(group, kind) for kind in kinds} if group.finished else {},
        "costs": {name: pair(group.spread(name)) for name in COSTS},
        "rounds": _rounds(group),
        "traffic": _traffic(group),
    }


def chosen(found: dict[str, PredictionRecord], kind: str) -> PredictionRecord:
    """Return a prediction, or what stands in for it where a method does not have it."""
    return next(found[k] for k in INSTEAD[kind] if k in found)


def _prediction(found: Sequence[PredictionRecord]) -> Data:
    matrix = mean_matrix([p.matrix for p in found])
    return {
        "accuracy": _spread(mean_and_std([p.accuracies for p in found])),
        "matrix": [percents(row) for row in matrix],
        "forgetting": _spread(mean_and_std([forgetting_by_task(p.matrix) for p in found])),
        "head": _spread(mean_and_std([_group_accuracy(p, 0) for p in found])),
        "tail": _spread(mean_and_std([_group_accuracy(p, 1) for p in found])),
    }


def _group_accuracy(prediction: PredictionRecord, which: int) -> list[float]:
    values = (pair[which] for pair in prediction.head_tail)
    return [nan if v is None else v for v in values]


def _spread(curve: Curve) -> Data:
    mean, std = curve
    return {"mean": percents(mean), "std": percents(std) if std.any() else None}


def _measures(group: Group, kind: str) -> Data:
    """Return the columns of the comparison, and what the prediction gained over no correction, seed by seed."""
    done = [predictions(run) for run in group.shown if run.finished]
    values = [chosen(p, kind).measures() for p in done]
    columns = {name: [v[name] for v in values] for name in values[0]}
    if kind != NONE:
        columns["gain"] = [chosen(p, kind).accuracies[-1] - p[NONE].accuracies[-1] for p in done]
    return {name: pair(Spread.of(column)) for name, column in columns.items()}


def pair(spread: Spread | None) -> list[float | None]:
    """Return mean and deviation with enough digits for a table."""
    if spread is None:
        return [None, None]
    return [None if v is None else round(v, 4) for v in (spread.mean, spread.std)]


def _rounds(group: Group) -> Data:
    """Return curves over all rounds of all tasks, averaged over the seeds that reach so far."""
    runs = [run for run in group.runs if run.rounds]

    def curve(value: Callable[[RoundRecord], float | None]) -> list[float | None]:
        rows = [[nan if (v := value(r)) is None else v for r in run.rounds] for run in runs]
        return significant(thinned(ragged_mean(rows)))

    longest = max(runs, key=lambda run: len(run.rounds), default=None)
    return {
        "count": len(longest.rounds) if longest else 0,
        "task_starts": task_starts(longest) if longest else [],
        "losses": {name: curve(lambda r, name=name: r.losses.get(name)) for name in loss_names(runs)},  # type: ignore[misc]
        "images_per_second": curve(lambda r: r.images_per_second),
        "up": curve(lambda r: None if r.bytes_up is None else r.bytes_up / MEGABYTE),
        "down": curve(lambda r: None if r.bytes_down is None else r.bytes_down / MEGABYTE),
    }


def task_starts(run: Run) -> list[int]:
    """Return the rounds, counted from 0 through the run, at which tasks begin."""
    tasks = [r.task for r in run.rounds]
    return [i for i, task in enumerate(tasks) if i == 0 or task != tasks[i - 1]]


def _traffic(group: Group) -> dict[str, float]:
    """Return megabytes by direction and operation, averaged over seeds."""
    results = [run.result for run in group.shown if run.result]
    total: dict[str, float] = {}
    for result in results:
        for address, count in result.traffic.items():
            kind = " / ".join(address.split("/")[:2])
            total[kind] = total.get(kind, 0.0) + count / MEGABYTE / len(results)
    return {kind: round(value, 6) for kind, value in sorted(total.items())}


def run_detail(run: Run) -> Data:
    """Return a run's confusion tables, energies, clients and pictures."""
    found = predictions(run)
    return {
        "seed": run.seed,
        "folder": str(run.path),
        "finished": run.finished,
        "confusion": {kind: p.confusion for kind, p in found.items() if p.confusion},
        "energies": [{"task": task.task, **task.energies.model_dump()} for task in run.tasks if task.energies],
        "clients": _client_accuracies(run.scenario, found) if run.scenario else {},
        "client_losses": client_losses(run),
        "pictures": pictures(run),
    }


def _client_accuracies(scenario: ScenarioRecord, found: dict[str, PredictionRecord]) -> Data:
    """Return, by prediction, each client's accuracy after each task."""
    tables = {kind: client_accuracies(scenario, p.per_class) for kind, p in found.items()}
    return {kind: [percents(row) for row in table] for kind, table in tables.items() if len(table)}


def client_accuracies(scenario: ScenarioRecord, per_class: Sequence[Sequence[float]]) -> np.ndarray:
    """Return [client, task]: accuracy per class after each task, weighted by the client's own mix of classes so far.

    NaN is a client that holds nothing yet. Nothing is returned where clients or accuracies are not listed.
    """
    if not any(task.clients for task in scenario.tasks) or not all(per_class):
        return np.empty((0, 0))
    table = np.full((scenario.num_clients, len(per_class)), nan)
    for task, accuracies in enumerate(per_class):
        mix = client_class_counts(scenario, task + 1)[:, : len(accuracies)]
        total = mix.sum(axis=1)
        some = total > 0
        table[some, task] = mix[some] @ np.array(accuracies)[: mix.shape[1]] / total[some]
    return table


def client_class_counts(scenario: ScenarioRecord, tasks: int) -> np.ndarray:
    """Return training samples [client, class] of the first tasks, classes in order of arrival."""
    column = {name: c for c, name in enumerate(dict.fromkeys(n for task in scenario.tasks for n in task.classes))}
    counts = np.zeros((scenario.num_clients, len(column)))
    for task in scenario.tasks[:tasks]:
        columns = [column[name] for name in task.classes]
        for client in task.clients:
            counts[client.client, columns] += client.counts
    return counts


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
