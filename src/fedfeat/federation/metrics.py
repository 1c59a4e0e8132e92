"""Every metric is a pure function of one accuracy matrix; evaluation itself is counting.

``matrix[i][j]`` is the accuracy in percent on the test images of task ``j`` after training on task ``i``, j <= i.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Matrix = list[list[float]]


def task_accuracies(confusion: np.ndarray, tasks: Sequence[range]) -> list[float]:
    """Return the accuracy in percent on each task's classes; rows of ``confusion`` are true classes."""
    return [_percent(np.diag(confusion)[list(t)].sum(), confusion[list(t)].sum()) for t in tasks]


def class_accuracies(confusion: np.ndarray) -> list[float]:
    """Return the accuracy in percent on each class."""
    return [_percent(right, total) for right, total in zip(np.diag(confusion), confusion.sum(axis=1), strict=True)]


def overall_accuracy(confusion: np.ndarray) -> float:
    """Return top-1 accuracy in percent over all test images of the seen classes."""
    return _percent(np.trace(confusion), confusion.sum())


def average_incremental_accuracy(overall: Sequence[float]) -> float:
    """Return the mean over tasks of the overall accuracy after each task."""
    return float(np.mean(overall))


def forgetting(matrix: Matrix) -> float:
    """Return how far old tasks fell below their best, averaged: ``mean_j max_{i<T} A[i][j] - A[T][j]``."""
    last = len(matrix) - 1
    if last == 0:
        return 0.0
    return float(np.mean([max(matrix[i][j] for i in range(j, last)) - matrix[last][j] for j in range(last)]))


def backward_transfer(matrix: Matrix) -> float:
    """Return what later tasks did to earlier ones: ``mean_j A[T][j] - A[j][j]``; negative means forgetting."""
    last = len(matrix) - 1
    if last == 0:
        return 0.0
    return float(np.mean([matrix[last][j] - matrix[j][j] for j in range(last)]))


def head_tail_accuracy(confusion: np.ndarray, num_old: int) -> tuple[float | None, float | None]:
    """Return accuracy on the current task's classes and on all earlier ones; None for an empty group."""
    correct, total = np.diag(confusion), confusion.sum(axis=1)
    groups = slice(num_old, None), slice(0, num_old)
    head, tail = (_percent(correct[g].sum(), total[g].sum()) if total[g].sum() else None for g in groups)
    return head, tail


def _percent(correct: float, total: float) -> float:
    return 100.0 * float(correct) / float(total) if total else 0.0
