"""Every metric is a pure function of confusion tables or of one accuracy matrix; evaluation itself is counting.

``matrix[i][j]`` is the accuracy in percent on the test images of task ``j`` after training on task ``i``, j <= i.

A table has a column per class, and a row per class of the tasks so far. Where tasks bring domains, it has a row per
class of the first domain, then of the second, and so on: row ``r`` is of class ``r % C``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedfeat.algorithm.tables import Tables

Matrix = list[list[float]]
Numbers = dict[str, Any]


def task_accuracies(confusion: np.ndarray, tasks: Sequence[range]) -> list[float]:
    """Return the accuracy in percent on each task's rows of the table."""
    return [_percent(_right(confusion)[list(t)].sum(), confusion[list(t)].sum()) for t in tasks]


def class_accuracies(confusion: np.ndarray) -> list[float]:
    """Return the accuracy in percent on each class, over all domains."""
    table = over_domains(confusion)
    return [_percent(right, total) for right, total in zip(np.diag(table), table.sum(axis=1), strict=True)]


def over_domains(confusion: np.ndarray) -> np.ndarray:
    """Return the square table of classes: the sum over domains, where there are several."""
    classes = confusion.shape[1]
    total: np.ndarray = confusion.reshape(-1, classes, classes).sum(axis=0)
    return total


def _right(confusion: np.ndarray) -> np.ndarray:
    """Return how many images of each row were recognised."""
    rows = np.arange(len(confusion))
    right: np.ndarray = confusion[rows, rows % confusion.shape[1]]
    return right


def overall_accuracy(confusion: np.ndarray) -> float:
    """Return top-1 accuracy in percent over all test images of the seen classes."""
    return _percent(_right(confusion).sum(), confusion.sum())


def average_incremental_accuracy(overall: Sequence[float]) -> float:
    """Return the mean over tasks of the overall accuracy after each task."""
    return float(np.mean(overall))


def forgetting(matrix: Matrix) -> float:
    """Return how far old tasks fell below their best, averaged: ``mean_j max_{i<T} A[i][j] - A[T][j]``."""
    return float(np.mean(forgetting_by_task(matrix) or [0.0]))


def forgetting_by_task(matrix: Matrix) -> list[float]:
    """Return how far each old task ended below its best before the last task."""
    last = len(matrix) - 1
    return [max(matrix[i][j] for i in range(j, last)) - matrix[last][j] for j in range(last)]


def backward_transfer(matrix: Matrix) -> float:
    """Return what later tasks did to earlier ones: ``mean_j A[T][j] - A[j][j]``; negative means forgetting."""
    last = len(matrix) - 1
    if last == 0:
        return 0.0
    return float(np.mean([matrix[last][j] - matrix[j][j] for j in range(last)]))


def head_tail_accuracy(confusion: np.ndarray, num_old: int) -> tuple[float | None, float | None]:
    """Return accuracy on the current task's rows and on all earlier ones; None for an empty group."""
    correct, total = _right(confusion), confusion.sum(axis=1)
    groups = slice(num_old, None), slice(0, num_old)
    head, tail = (_percent(correct[g].sum(), total[g].sum()) if total[g].sum() else None for g in groups)
    return head, tail


def _percent(correct: float, total: float) -> float:
    return 100.0 * float(correct) / float(total) if total else 0.0


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
        "confusion": over_domains(last.corrected).tolist(),
        "confusion_uncorrected": over_domains(last.plain).tolist(),
        "confusion_of_variants": {name: over_domains(table).tolist() for name, table in last.variants.items()},
    }


def _of_run(tables: Sequence[np.ndarray], tasks: Sequence[range]) -> tuple[Matrix, list[float]]:
    matrix = [task_accuracies(table, tasks[: i + 1]) for i, table in enumerate(tables)]
    return matrix, [overall_accuracy(table) for table in tables]
