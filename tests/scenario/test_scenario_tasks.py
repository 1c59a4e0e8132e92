import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.core.errors import ConfigError
from fedfeat.scenario import Scenario, ScenarioSettings, build_scenario
from fedfeat.scenario.build import class_order, task_ranges


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
    assert [len(classes) for classes in task_ranges(classes, tasks)] == sizes


@given(st.integers(1, 200), st.data())
def test_task_ranges_cover_all_classes_in_order(classes, data):
    ranges = task_ranges(classes, data.draw(st.integers(1, classes)))
    assert [c for task in ranges for c in task] == list(range(classes))


def test_more_tasks_than_classes_is_one_sentence():
    with pytest.raises(ConfigError, match="tasks is 11 but the data set has 10 classes; choose between 1 and 10"):
        task_ranges(10, 11)


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


LABELS = np.repeat(np.arange(6), 20)


def built(run_seed: int, **settings: object) -> Scenario:
    return build_scenario(LABELS, 6, ScenarioSettings(tasks=3, clients=4, participation=2, **settings), run_seed)


def random_parts(scenario: Scenario) -> list[object]:
    samples = [scenario.samples(t, k).tolist() for t in range(3) for k in range(4)]
    participants = [scenario.participants(t, r).tolist() for t in range(3) for r in range(5)]
    return [list(scenario.class_order), samples, participants]


@pytest.mark.parametrize("how", ["seeded", "legacy"])
def test_the_scenario_follows_its_own_seed(how: str) -> None:
    drawn = {"class_order": how, "partition_seed": "legacy" if how == "legacy" else "per_task"}
    assert random_parts(built(1, seed=2023, **drawn)) == random_parts(built(2023, **drawn))
    assert random_parts(built(2, seed=2023, **drawn)) == random_parts(built(2023, **drawn))
    assert random_parts(built(1, **drawn)) != random_parts(built(2, **drawn))
