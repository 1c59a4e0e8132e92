"""What confusion tables say: the numbers of a finished task, and those of a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedfeat.algorithm.tables import Tables
from fedfeat.federation.metrics import (
    average_incremental_accuracy,
    backward_transfer,
    class_accuracies,
    forgetting,
    head_tail_accuracy,
    overall_accuracy,
    task_accuracies,
)

Numbers = dict[str, Any]


def after_task(tables: Tables, tasks: Sequence[range]) -> Numbers:
    """Return the accuracies after a task, of every prediction, and the energies of the test features."""
    corrected, plain = _of_task(tables.corrected, tasks), _of_task(tables.plain, tasks)
    return {
        **corrected,
        **{f"{key}_uncorrected": value for key, value in plain.items()},
        "variants": {name: _of_task(table, tasks) for name, table in tables.variants.items()},
        "energies": tables.energies.record() if tables.energies else None,
    }


def _of_task(confusion: np.ndarray, tasks: Sequence[range]) -> Numbers:
    return {
        "accuracy": overall_accuracy(confusion),
        "per_task": task_accuracies(confusion, tasks),
        "per_class": class_accuracies(confusion),
        "head_tail": head_tail_accuracy(confusion, tasks[-1].start),
    }


def over_tasks(tables: Sequence[Tables], tasks: Sequence[range]) -> Numbers:
    """Return every accuracy of a finished run, corrected and not, and of further predictions."""
    matrix, overall = _of_run([t.corrected for t in tables], tasks)
    plain_matrix, plain = _of_run([t.plain for t in tables], tasks)
    last = tables[-1]
    variants = {name: _of_run([t.variants[name] for t in tables], tasks) for name in last.variants}
    return {
        "final_accuracy": overall[-1],
        "final_accuracy_uncorrected": plain[-1],
        "accuracy_after_task": overall,
        "accuracy_after_task_uncorrected": plain,
        "accuracy_matrix": matrix,
        "accuracy_matrix_uncorrected": plain_matrix,
        "average_incremental_accuracy": average_incremental_accuracy(overall),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "accuracy_of_variants": {name: after for name, (_, after) in variants.items()},
        "accuracy_matrix_of_variants": {name: rows for name, (rows, _) in variants.items()},
        "confusion": last.corrected.tolist(),
        "confusion_uncorrected": last.plain.tolist(),
        "confusion_of_variants": {name: table.tolist() for name, table in last.variants.items()},
    }


def _of_run(tables: Sequence[np.ndarray], tasks: Sequence[range]) -> tuple[list[list[float]], list[float]]:
    matrix = [task_accuracies(table, tasks[: i + 1]) for i, table in enumerate(tables)]
    return matrix, [overall_accuracy(table) for table in tables]
