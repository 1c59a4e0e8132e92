"""Who takes part in a round, and how many exemplars a client may keep."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.scenario import ScenarioSettings, build_scenario


def test_everybody_takes_part_by_default(make):
    scenario = make(joins={"4": 3})
    assert scenario.participants(0, 9).tolist() == [0, 1, 2, 3]
    assert scenario.participants(2, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("participation", "sizes"),
    [(0.5, [5, 10]), (0.3, [3, 6]), (0.25, [3, 5]), (0.01, [1, 1]), (4, [4, 4]), (15, [10, 15])],
)
def test_fraction_and_number(make, participation, sizes):
    scenario = make(clients=20, tasks=2, min_samples=0, participation=participation, joins={"10-19": 2})
    for task, size in enumerate(sizes):
        assert scenario.participants_per_round(task) == size
        chosen = scenario.participants(task, 0)
        assert len(np.unique(chosen)) == size
        assert (np.diff(chosen) > 0).all()
        assert np.isin(chosen, scenario.present(task)).all()


def test_participants_are_a_function_of_the_address(make):
    scenario, again, other = (make(seed=s, clients=20, min_samples=0, participation=5) for s in (1, 1, 2))
    late_first = [again.participants(t, r).tolist() for t in (1, 0) for r in range(9, -1, -1)]
    in_order = [scenario.participants(t, r).tolist() for t in (0, 1) for r in range(10)]
    assert in_order == late_first[::-1]
    assert len({tuple(ids) for ids in in_order}) > 10
    assert in_order != [other.participants(t, r).tolist() for t in (0, 1) for r in range(10)]


def test_everybody_is_drawn_equally_often(make):
    scenario = make(clients=20, min_samples=0, participation=5)
    often = np.bincount(np.concatenate([scenario.participants(0, r) for r in range(2000)]), minlength=20)
    assert abs(often - 500).max() < 100


def test_a_round_costs_the_same_with_many_registered_clients():
    def seconds(clients: int) -> float:
        chosen = ScenarioSettings(clients=clients, tasks=1, min_samples=0, participation=10)
        scenario = build_scenario(np.arange(10), 10, chosen, 0)
        start = time.perf_counter()
        for round in range(200):
            assert len(scenario.participants(0, round)) == 10
        return time.perf_counter() - start

    seconds(100)
    assert min(seconds(200_000) for _ in range(2)) < 5 * seconds(100)


def test_a_global_budget_is_shared_with_the_remainder_to_the_lowest_ids(make):
    quotas = make(clients=7, budget=450).quotas(0)
    assert quotas.tolist() == [65, 65, 64, 64, 64, 64, 64]


def test_clients_not_yet_present_get_no_quota(make):
    scenario = make(budget=11, joins={"0": 2})
    assert scenario.quotas(0).tolist() == [0, 3, 3, 3, 2]
    assert scenario.quotas(1).tolist() == [3, 2, 2, 2, 2]


def test_a_budget_per_client_is_not_shared(make):
    scenario = make(budget=60, budget_scope="per_client_per_task", joins={"0": 2})
    assert scenario.quotas(0).tolist() == [0, 60, 60, 60, 60]


@settings(max_examples=30, deadline=None)
@given(budget=st.integers(0, 1000), clients=st.integers(1, 40))
def test_quotas_sum_to_the_budget(make, budget, clients):
    quotas = make(clients=clients, budget=budget, min_samples=0).quotas(0)
    assert quotas.sum() == budget
    assert quotas.max() - quotas.min() <= 1
