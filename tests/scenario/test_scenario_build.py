import time
from itertools import chain

import numpy as np
import pytest

from fedfeat.core.errors import ConfigError, DataError
from fedfeat.scenario import ScenarioSettings, build_scenario
from fedfeat.scenario import build as building


def samples_of(scenario) -> list[list[int]]:
    return [scenario.samples(t, k).tolist() for t in range(scenario.num_tasks) for k in range(scenario.num_clients)]


@pytest.mark.parametrize("partition", ["dirichlet", "plain_dirichlet", "iid", "shards"])
def test_every_training_sample_has_one_place_and_the_right_task(make, partition):
    scenario = make(partition=partition, tasks=3)
    assert sorted(chain.from_iterable(samples_of(scenario))) == list(range(2000))
    for task, classes in enumerate(scenario.task_classes):
        for client in range(5):
            assert set(scenario.labels[scenario.samples(task, client)]) <= set(classes)


def test_tasks_count_classes_in_order_of_arrival(make):
    scenario = make(tasks=3, class_order="legacy", seed=2023)
    assert scenario.class_order == (8, 2, 5, 0, 3, 4, 1, 9, 6, 7)
    assert scenario.task_classes == (range(3), range(3, 6), range(6, 10))
    assert [scenario.old_classes(t) for t in range(3)] == [0, 3, 6]
    assert [scenario.seen_classes(t) for t in range(3)] == [3, 6, 10]
    assert scenario.internal_labels([8, 2, 7]).tolist() == [0, 1, 9]
    assert scenario.labels[:10].tolist() == [scenario.class_order.index(c) for c in range(10)]
    assert scenario.internal_labels(scenario.class_order).tolist() == list(range(10))


@pytest.mark.parametrize("tasks", [5, 10])
def test_legacy_mode_repeats_the_published_split_in_every_task(tasks):
    per_task = 100 // tasks
    beta, sizes = {5: (0.1, [2048, 2060, 1488, 1978, 2426]), 10: (0.5, [1265, 1027, 1101, 553, 1054])}[tasks]
    settings = ScenarioSettings(tasks=tasks, beta=beta, class_order="legacy", partition_seed="legacy")
    scenario = build_scenario(np.tile(np.arange(100), 500), 100, settings, 2023)
    for task in range(tasks):
        assert scenario.splits[task].sizes.tolist() == sizes
    first = scenario.counts(0)[0, :per_task]
    assert np.array_equal(first, scenario.counts(tasks - 1)[0, -per_task:])
    if tasks == 10:
        assert first.tolist() == [53, 205, 141, 359, 210, 0, 297, 0, 0, 0]


def test_by_default_tasks_are_split_independently(make):
    scenario = make(class_order="natural")
    assert scenario.splits[0].sizes.tolist() != scenario.splits[1].sizes.tolist()


def test_same_seed_same_scenario_and_another_seed_another(make):
    assert samples_of(make(seed=1)) == samples_of(make(seed=1)) != samples_of(make(seed=2))


def test_the_partition_does_not_hear_of_other_settings(make):
    plain = samples_of(make())
    assert plain == samples_of(make(participation=2, budget=17, budget_scope="per_client_per_task"))
    other_classes = make(class_order="natural")
    assert [len(s) for s in plain] == [len(s) for s in samples_of(other_classes)]


def test_counts_agree_with_the_samples(make):
    scenario = make(tasks=4)
    for task in range(4):
        counts = scenario.counts(task)
        assert counts.shape == (5, 10)
        for client in range(5):
            labels = scenario.labels[scenario.samples(task, client)]
            assert counts[client].tolist() == [int((labels == c).sum()) for c in range(10)]
    assert sum(scenario.counts(t) for t in range(4)).sum(axis=0).tolist() == [200] * 10


def test_samples_come_shuffled_and_locked(make):
    scenario = make(tasks=2, beta=100.0)
    samples = scenario.samples(0, 0)
    assert samples.dtype == np.int64
    assert scenario.labels[samples].tolist() != sorted(scenario.labels[samples])
    with pytest.raises(ValueError, match="read-only"):
        samples[0] = 1


def test_every_client_holds_at_least_min_samples(make):
    settings = {"clients": 8, "beta": 0.5, "per_class": 100}
    smallest = [
        [s.sizes.min() for s in make(seed=s, min_samples=m, **settings).splits] for m in (0, 4) for s in range(8)
    ]
    free, demanding = np.array(smallest[:8]), np.array(smallest[8:])
    assert demanding.min() >= 4 > free.min()


def test_a_split_that_already_satisfies_is_not_redrawn(make):
    assert samples_of(make(min_samples=0)) == samples_of(make(min_samples=1))


@pytest.mark.parametrize(("clients", "min_samples"), [(500, 1), (5, 80)])
def test_an_impossible_demand_is_one_sentence_with_a_remedy(make, clients, min_samples, monkeypatch):
    monkeypatch.setattr(building, "MAX_ATTEMPTS", 20)
    with pytest.raises(ConfigError) as caught:
        make(clients=clients, min_samples=min_samples)
    text = str(caught.value)
    assert f"task 1 (400 samples, {clients} clients)" in text
    assert f"at least {min_samples} samples; lower scenario.min_samples" in text
    assert "\n" not in text


def test_build_time_contradictions(make):
    with pytest.raises(ConfigError, match="choose between 1 and 10 tasks"):
        make(tasks=11)
    with pytest.raises(ConfigError, match="labels 0 to 9 once"):
        make(class_order=[0, 1, 2])
    with pytest.raises(DataError, match="outside 0 to 3"):
        build_scenario(np.arange(5), 4, ScenarioSettings(), 0)


def test_late_clients_hold_nothing_before_they_join(make):
    scenario = make(joins={"1": 3, "3-4": 2})
    assert [scenario.present(t).tolist() for t in range(5)] == [[0, 2], [0, 2, 3, 4]] + [[0, 1, 2, 3, 4]] * 3
    assert [scenario.samples(t, 1).size > 0 for t in range(5)] == [False, False, True, True, True]
    assert (scenario.splits[0].sizes > 0).tolist() == [True, False, True, False, False]
    assert sorted(chain.from_iterable(samples_of(scenario))) == list(range(2000))


def test_ten_thousand_clients_are_quick():
    start = time.perf_counter()
    settings = ScenarioSettings(clients=10_000, min_samples=0, participation=10, joins={"5000-9999": 3})
    scenario = build_scenario(np.tile(np.arange(100), 500), 100, settings, 3)
    scenario.counts(4)
    record = scenario.to_json()
    assert time.perf_counter() - start < 5
    assert sum(split.sizes.sum() for split in scenario.splits) == 50_000
    assert "clients" not in record["tasks"][0]
    assert record["tasks"][0]["present"] == 5000


def test_the_order_of_classes_can_follow_the_run_while_the_partition_stays():
    labels_of_ten = np.repeat(np.arange(10), 40)
    shared = {"tasks": 5, "class_order": "legacy", "partition_seed": "legacy", "seed": 2023}
    one, other = (
        build_scenario(labels_of_ten, 10, ScenarioSettings(**shared, order_seed="run"), seed) for seed in (2023, 2024)
    )
    assert one.class_order == build_scenario(labels_of_ten, 10, ScenarioSettings(**shared), 2024).class_order
    assert other.class_order == building.class_order(10, "legacy", 2024) != one.class_order
    for task in range(5):
        assert [len(one.samples(task, k)) for k in range(5)] == [len(other.samples(task, k)) for k in range(5)]
