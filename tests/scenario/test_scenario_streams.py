"""Late images, clients that leave, clients that lag, domains: who gets what, and when."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedfeat.core.errors import ConfigError
from fedfeat.scenario import ScenarioSettings, build_scenario
from fedfeat.scenario.build import by_class


def everything(scenario):
    return np.sort(np.concatenate([split.indices for split in scenario.splits]))


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.01, 0.99), tasks=st.integers(2, 5), seed=st.integers(0, 99), count=st.integers(1, 40))
def test_late_images_come_once_and_after_their_class(share, tasks, seed, count):
    members = [np.arange(c * count, (c + 1) * count) for c in range(10)]
    ranges = [range(t * 2, t * 2 + 2) for t in range(tasks)]
    coming = by_class(members, ranges, share, seed)
    tasks_of = {int(i): task for task, classes in enumerate(coming) for part in classes for i in part}
    assert sorted(tasks_of) == list(range(2 * tasks * count))
    assert sum(len(part) for classes in coming for part in classes) == len(tasks_of), "no image comes twice"
    for c in range(2 * tasks):
        when = [tasks_of[int(i)] for i in members[c]]
        late = sum(task > c // 2 for task in when)
        assert min(when) >= c // 2
        assert late == (0 if c // 2 == tasks - 1 else round(share * count))


def test_which_images_are_late_depends_on_seed_and_class_alone():
    def late(sizes, seed):
        starts = np.cumsum([0, *sizes])
        members = [np.arange(a, b) for a, b in pairwise(starts)]
        coming = by_class(members, [range(2), range(2, 4)], 0.3, seed)
        return set((coming[0][1] - starts[1]).tolist())  # of class 1, what is not late

    assert late([20, 30, 5, 5], 3) == late([7, 30, 9, 5], 3) != late([20, 30, 5, 5], 4)


def test_late_images_are_partitioned_with_those_of_the_task(make):
    scenario = make(blurry=0.25)
    assert everything(scenario).tolist() == list(range(2000))
    for task in range(5):
        counts = scenario.counts(task).sum(axis=0)
        assert counts[2 * task : 2 * task + 2].tolist() == [150 if task < 4 else 200] * 2
        assert (counts[: 2 * task] > 0).all()
        assert not counts[2 * task + 2 :].any()
    assert scenario.held_classes(2) == [4, 5, 0, 1, 2, 3]
    assert (scenario.old_classes(2), scenario.seen_classes(2)) == (4, 6)


def test_without_late_images_nothing_is_drawn(make):
    for a, b in zip(make().splits, make(blurry=0.0, leaves={}, lag={"1": 0}).splits, strict=True):
        assert a.indices.tobytes() == b.indices.tobytes()


def test_clients_that_left_get_nothing(make):
    scenario = make(joins={"4": 2}, leaves={"0": 3, "2-3": 5}, budget=12)
    present = [scenario.present(task).tolist() for task in range(5)]
    assert present == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 4]]
    assert [scenario.gone(task).tolist() for task in range(5)] == [[], [], [0], [0], [0, 2, 3]]
    assert everything(scenario).tolist() == list(range(2000)), "the others have all there is"
    for task in range(5):
        absent = np.setdiff1d(np.arange(5), present[task])
        assert not scenario.splits[task].sizes[absent].any()
        assert not scenario.quotas(task)[absent].any()
        assert scenario.quotas(task).sum() == 12
        assert set(scenario.participants(task, 0).tolist()) == set(present[task])


def test_a_client_that_lags_has_its_part_of_an_earlier_task(make):
    scenario = make(lag={"3": 1, "4": 2})
    assert [scenario.present(task).tolist() for task in range(3)] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert everything(scenario).tolist() == list(range(2000)), "whoever gets to a task shares all of it"
    for task in range(5):
        counts, lags = scenario.counts(task), (0, 0, 0, 1, 2)
        for client, lag in enumerate(lags):
            own = task - lag
            held = np.flatnonzero(counts[client])
            assert set(held) <= ({2 * own, 2 * own + 1} if own >= 0 else set())
            if own >= 0:
                assert scenario.own_old_classes(task, client) == 2 * own
    # Task 5 is never reached by those behind, and task 4 not by client 4.
    assert scenario.splits[4].sizes[:3].sum() == 400


def test_lag_goes_with_late_images_and_with_clients_that_leave(make):
    scenario = make(lag={"1": 1}, blurry=0.2, leaves={"1": 4}, joins={"2": 3})
    assert everything(scenario).tolist() == list(range(2000))
    assert [1 in scenario.present(task) for task in range(5)] == [False, True, True, False, False]
    assert set(np.flatnonzero(scenario.counts(2)[1])) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"blurry": 1.0}, "less than 1"),
        ({"blurry": 0.1, "tasks": 1}, "there is one task"),
        ({"blurry": 0.1, "brings": "domains"}, "no task has classes of its own"),
        ({"blurry": 0.1, "task_names": [["a"], ["b"]]}, "clients bring their own"),
        ({"lag": {"1": 1}, "task_names": [["a"], ["b"]]}, "clients bring their own"),
        ({"brings": "domains", "task_names": [["a"], ["b"]]}, "clients bring their own"),
        ({"leaves": {"1": 1}}, "leave in tasks 2 to 5"),
        ({"leaves": {"1": 6}}, "leave in tasks 2 to 5"),
        ({"leaves": {"1": 2}, "tasks": 1}, "leave in tasks 2 to 1"),
        ({"leaves": {"7": 2}}, "ids run from 0 to 4"),
        ({"leaves": {"0-4": 3}}, "nobody in task 3"),
        ({"leaves": {"1": 2}, "joins": {"1": 2}}, "client 1 would begin in task 2 and is gone from task 2 on"),
        ({"leaves": {"1": 2}, "lag": {"1": 3}}, "client 1 would begin in task 4 and is gone from task 2 on"),
        ({"lag": {"1": 5}}, "a lag is from 0 to 4"),
        ({"lag": {"1-3": 1, "2": 2}}, "twice"),
        ({"lag": {"0-4": 1}}, "nobody in task 1 who is not behind"),
        ({"lag": {"0-3": 1}, "leaves": {"4": 3}}, "nobody in task 3 who is not behind"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_sentence(given, told):
    with pytest.raises(ValidationError, match=told) as refused:
        ScenarioSettings(**given)
    (error,) = refused.value.errors()
    assert "\n" not in error["msg"]


def test_each_task_brings_a_domain():
    labels, domains = np.tile(np.arange(4), 60), np.repeat([1, 0, 2], 80)
    scenario = build_scenario(labels, 4, ScenarioSettings(tasks=3, brings="domains"), 7, domains)
    for task in range(3):
        assert set(domains[scenario.splits[task].indices]) == {task}
        assert scenario.counts(task).sum(axis=0).tolist() == [20] * 4
        assert (scenario.old_classes(task), scenario.seen_classes(task)) == (0, 4)
    assert scenario.test_rows == (range(4), range(4, 8), range(8, 12))


@pytest.mark.parametrize(
    ("domains", "told"), [(None, "has no domains"), ([0, 1] * 20, "2 domains, and each is a task")]
)
def test_domains_have_to_be_there(domains, told):
    with pytest.raises(ConfigError, match=told):
        build_scenario([0, 1] * 20, 2, ScenarioSettings(tasks=3, brings="domains"), 7, domains)


def test_record_names_other_classes_and_domains(make, names):
    task = make(blurry=0.25, class_order="natural").to_json(names)["tasks"][1]
    assert (task["classes"], task["new"]) == (["bird", "cat", "airplane", "automobile"], 2)
    assert task["samples"] == sum(task["samples_per_class"]) == sum(sum(c["counts"]) for c in task["clients"])
    assert "new" not in make().to_json(names)["tasks"][1]
    labels = np.tile(np.arange(4), 40)
    domains = build_scenario(labels, 4, ScenarioSettings(tasks=2, brings="domains"), 7, np.repeat([0, 1], 80))
    assert [t["domain"] for t in domains.to_json(domain_names=["photo", "sketch"])["tasks"]] == ["photo", "sketch"]
