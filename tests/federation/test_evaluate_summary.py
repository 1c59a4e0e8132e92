"""What is written down after a task and at the end: every prediction, from its own table."""

from __future__ import annotations

import numpy as np

from fedfeat.algorithm.tables import Tables
from fedfeat.federation.metrics import after_task, class_accuracies, over_tasks

TASKS = [range(0, 1), range(1, 3)]
FIRST = Tables(np.array([[8]]), np.array([[8]]), {"other": np.array([[8]])})
PLAIN = np.array([[2, 6, 0], [0, 4, 0], [1, 0, 3]])
CORRECTED = np.array([[6, 2, 0], [1, 3, 0], [0, 2, 2]])
OTHER = np.array([[8, 0, 0], [4, 0, 0], [0, 0, 4]])
SECOND = Tables(PLAIN, CORRECTED, {"other": OTHER})


def test_after_a_task_every_prediction_has_the_same_numbers():
    numbers = after_task(SECOND, TASKS)
    assert numbers["accuracy"] == 100 * 11 / 16
    assert numbers["per_task"] == [75.0, 62.5]
    assert numbers["per_class"] == [75.0, 75.0, 50.0]
    assert numbers["head_tail"] == (62.5, 75.0)
    assert numbers["accuracy_uncorrected"] == 100 * 9 / 16
    assert numbers["per_class_uncorrected"] == [25.0, 100.0, 75.0]
    assert numbers["head_tail_uncorrected"] == (87.5, 25.0)
    assert numbers["variants"]["other"] == {
        "accuracy": 75.0,
        "per_task": [100.0, 50.0],
        "per_class": [100.0, 0.0, 100.0],
        "head_tail": (50.0, 100.0),
    }
    assert numbers["energies"] is None
    assert after_task(FIRST, TASKS[:1])["head_tail"] == (100.0, None)


def test_the_result_holds_matrices_and_last_tables_of_all_predictions():
    result = over_tasks([FIRST, SECOND], TASKS)
    assert result["accuracy_matrix"] == [[100.0], [75.0, 62.5]]
    assert result["accuracy_matrix_uncorrected"] == [[100.0], [25.0, 87.5]]
    assert result["accuracy_matrix_of_variants"] == {"other": [[100.0], [100.0, 50.0]]}
    assert result["accuracy_of_variants"] == {"other": [100.0, 75.0]}
    assert result["final_accuracy"] == result["accuracy_after_task"][-1] == 100 * 11 / 16
    assert result["forgetting"] == 25.0
    assert result["backward_transfer"] == -25.0
    assert result["confusion"] == CORRECTED.tolist()
    assert result["confusion_uncorrected"] == PLAIN.tolist()
    assert result["confusion_of_variants"] == {"other": OTHER.tolist()}


def test_a_class_without_test_images_counts_as_zero():
    assert class_accuracies(np.array([[3, 1], [0, 0]])) == [75.0, 0.0]
