import numpy as np
import pytest

from fedfeat.federation.metrics import (
    average_incremental_accuracy,
    backward_transfer,
    class_accuracies,
    forgetting,
    head_tail_accuracy,
    over_domains,
    overall_accuracy,
    task_accuracies,
)

# Three tasks; the second task's best is not its first value, the first task recovers a little.
MATRIX = [[90.0], [60.0, 80.0], [70.0, 50.0, 95.0]]
CONFUSION = np.array(  # true class in rows; two classes per task, four seen
    [
        [6, 2, 1, 1],
        [0, 5, 5, 0],
        [1, 0, 9, 0],
        [0, 0, 0, 20],
    ]
)


def test_forgetting_is_the_fall_from_the_best_earlier_value():
    assert forgetting(MATRIX) == pytest.approx(((90 - 70) + (80 - 50)) / 2)


def test_forgetting_looks_at_the_best_value_between_first_and_last():
    assert forgetting([[50.0], [75.0, 80.0], [60.0, 70.0, 90.0]]) == pytest.approx((15 + 10) / 2)


def test_forgetting_is_negative_when_old_tasks_end_at_their_best():
    assert forgetting([[50.0], [60.0, 90.0]]) == pytest.approx(-10.0)


def test_backward_transfer_compares_with_the_value_right_after_a_task():
    assert backward_transfer(MATRIX) == pytest.approx(((70 - 90) + (50 - 80)) / 2)
    assert backward_transfer([[50.0], [75.0, 80.0], [60.0, 70.0, 90.0]]) == pytest.approx((10 - 10) / 2)


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
def test_a_single_task_forgets_nothing(metric):
    assert metric([[73.0]]) == 0.0


def test_average_incremental_accuracy_is_the_mean_over_tasks():
    """The run log of LANDER on CIFAR-100 in ten tasks: its mean is 49.4."""
    curve = [84.0, 64.8, 56.1, 49.25, 46.1, 44.6, 39.83, 38.04, 37.49, 33.71]
    assert average_incremental_accuracy(curve) == pytest.approx(49.392)


def test_overall_accuracy_counts_images():
    assert overall_accuracy(CONFUSION) == pytest.approx(100 * 40 / 50)


def test_task_accuracies_count_each_tasks_images():
    tasks = [range(0, 2), range(2, 4)]
    assert task_accuracies(CONFUSION, tasks) == pytest.approx([100 * 11 / 20, 100 * 29 / 30])


def test_tasks_of_unequal_size_add_up_to_the_overall_accuracy():
    uneven = [range(0, 1), range(1, 4)]
    first, second = task_accuracies(CONFUSION, uneven)
    assert (10 * first + 40 * second) / 50 == pytest.approx(overall_accuracy(CONFUSION))


def test_head_is_the_current_task_and_tail_all_earlier_ones():
    head, tail = head_tail_accuracy(CONFUSION, 3)
    assert head == pytest.approx(100.0)
    assert tail == pytest.approx(100 * 20 / 30)


@pytest.mark.parametrize(("num_old", "head", "tail"), [(0, 80.0, None), (4, None, 80.0)])
def test_an_empty_group_has_no_accuracy(num_old, head, tail):
    assert head_tail_accuracy(CONFUSION, num_old) == (head, tail)


def test_a_task_without_images_counts_as_zero():
    assert task_accuracies(np.zeros((2, 2)), [range(0, 2)]) == [0.0]
    assert overall_accuracy(np.zeros((2, 2))) == 0.0


def test_metrics_are_plain_numbers():
    values = [forgetting(MATRIX), backward_transfer(MATRIX), overall_accuracy(CONFUSION)]
    values += [*task_accuracies(CONFUSION, [range(0, 4)]), *head_tail_accuracy(CONFUSION, 2)]
    assert {type(v) for v in values} == {float}


def test_a_table_of_domains_gives_accuracies_by_domain_and_by_class():
    # Two domains of two classes: rows are (0, 0), (0, 1), (1, 0), (1, 1).
    table = np.array([[3, 1], [0, 4], [1, 3], [2, 2]])
    rows = [range(2), range(2, 4)]
    assert task_accuracies(table, rows) == [87.5, 37.5]
    assert overall_accuracy(table) == 62.5
    assert class_accuracies(table) == [50.0, 75.0]
    assert head_tail_accuracy(table, rows[-1].start) == (37.5, 87.5)
    assert over_domains(table).tolist() == [[4, 4], [2, 6]]
