import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.core.errors import ConfigError
from fedfeat.scenario.tasks import class_order, task_ranges, task_sizes


@pytest.mark.parametrize(
    ("classes", "tasks", "sizes"),
    [
        (10, 3, [3, 3, 4]),
        (10, 5, [2] * 5),
        (100, 10, [10] * 10),
        (50, 10, [5] * 10),
        (7, 1, [7]),
        (3, 3, [1] * 3),
    ],
)
def test_task_sizes(classes, tasks, sizes):
    assert task_sizes(classes, tasks) == sizes


@given(st.integers(1, 200), st.data())
def test_task_ranges_cover_all_classes_in_order(classes, data):
    ranges = task_ranges(classes, data.draw(st.integers(1, classes)))
    assert [c for task in ranges for c in task] == list(range(classes))


def test_more_tasks_than_classes_is_one_sentence():
    with pytest.raises(ConfigError, match="tasks is 11 but the data set has 10 classes; choose between 1 and 10"):
        task_sizes(10, 11)


def test_legacy_class_order_is_the_published_one():
    assert class_order(10, "legacy", 2023) == (8, 2, 5, 0, 3, 4, 1, 9, 6, 7)
    assert class_order(200, "legacy", 2023)[:10] == (13, 188, 96, 122, 85, 2, 61, 173, 38, 8)


def test_class_orders():
    assert class_order(4, "natural", 5) == (0, 1, 2, 3)
    assert class_order(4, (3, 1, 0, 2), 5) == (3, 1, 0, 2)
    assert class_order(50, "seeded", 5) == class_order(50, "seeded", 5) != class_order(50, "seeded", 6)
    assert sorted(class_order(50, "seeded", 5)) == list(range(50))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3, 4)])
def test_a_given_order_must_be_complete(order):
    with pytest.raises(ConfigError, match="each of the data set's labels 0 to 3 once"):
        class_order(4, order, 0)


def test_a_seed_too_large_for_the_legacy_generator():
    with pytest.raises(ConfigError, match="does not fit the legacy generator"):
        class_order(10, "legacy", 2**32)
