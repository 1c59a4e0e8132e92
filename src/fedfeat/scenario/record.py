"""A scenario as plain data: what a run writes to ``scenario.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.scenario.partition import Ids

if TYPE_CHECKING:
    from fedfeat.scenario.scenario import Scenario

MAX_LISTED_CLIENTS = 200


def names_in_order(scenario: Scenario, class_names: Sequence[str] | None) -> list[str]:
    """Return the name of each internal class; without names, its data-set label."""
    return [str(label) if class_names is None else str(class_names[label]) for label in scenario.class_order]


def spread(values: Ids) -> dict[str, float]:
    """Return the smallest, middle and largest of some numbers."""
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def scenario_record(scenario: Scenario, class_names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return class order and, per task, who holds how much of what; many clients are only summed up."""
    names = names_in_order(scenario, class_names)
    return {
        "seed": scenario.seed,
        "settings": scenario.settings.model_dump(mode="json"),
        "num_clients": scenario.num_clients,
        "class_order": [{"id": i, "label": label, "name": names[i]} for i, label in enumerate(scenario.class_order)],
        "tasks": [_task_record(scenario, task, names) for task in range(scenario.num_tasks)],
    }


def _task_record(scenario: Scenario, task: int, names: list[str]) -> dict[str, Any]:
    classes, here = scenario.task_classes[task], scenario.present(task)
    counts = scenario.counts(task)[here, classes.start : classes.stop]
    record: dict[str, Any] = {
        "task": task + 1,
        "classes": [names[c] for c in classes],
        "present": len(here),
        "participants_per_round": scenario.participants_per_round(task),
        "exemplars_per_client": spread(scenario.quotas(task)[here]),
    }
    if scenario.settings.task_names is not None:
        return record  # only the owners of the images know how many there are
    record |= {
        "samples": int(counts.sum()),
        "samples_per_class": counts.sum(axis=0).tolist(),
        "samples_per_client": spread(counts.sum(axis=1)),
        "classes_per_client": spread((counts > 0).sum(axis=1)),
    }
    if scenario.num_clients <= MAX_LISTED_CLIENTS:
        rows = counts.tolist()
        record["clients"] = [{"client": int(k), "counts": row} for k, row in zip(here, rows, strict=True)]
    return record
