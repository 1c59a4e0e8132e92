from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.engines.cuda.local_update import (
    MOST_REPLICAS,
    batch_sizes,
    interleave,
    longest_first,
    plan_replicas,
    stream_priority,
)

GIB = 2**30


def test_as_many_replicas_as_take_part() -> None:
    assert plan_replicas(0, 5, 100 * GIB, GIB) == 5


def test_never_more_than_pay_unless_asked_for() -> None:
    assert plan_replicas(0, 50, 1000 * GIB, GIB) == MOST_REPLICAS
    assert plan_replicas(9, 50, 1000 * GIB, GIB) == 9


def test_memory_limits_and_one_always_stays() -> None:
    assert plan_replicas(0, 5, 2 * GIB, GIB) == 2  # the first one exists, one more fits beside a reserve
    assert plan_replicas(0, 5, 0, GIB) == 1


@given(st.integers(1, 400), st.integers(1, 130), st.integers(1, 4))
def test_batches_cover_every_sample_once_per_epoch(samples: int, batch: int, epochs: int) -> None:
    sizes = batch_sizes(samples, batch, epochs)
    assert sum(sizes) == samples * epochs
    assert all(0 < size <= batch for size in sizes)
    per_epoch = len(sizes) // epochs
    assert sum(sizes[:per_epoch]) == samples
    assert sum(size < batch for size in sizes[:per_epoch]) <= 1


def test_no_samples_give_no_step() -> None:
    assert batch_sizes(0, 128, 2) == []


def test_steps_are_launched_in_turn() -> None:
    assert interleave([[4, 4, 1], [4], []]) == [(0, 0), (0, 1), (1, 0), (0, 2)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_updates_of_all_lengths_end_together(lengths: list[int]) -> None:
    launched = interleave([[1] * length for length in lengths])
    assert sorted(launched) == [(r, s) for r, length in enumerate(lengths) for s in range(length)]
    done = [0] * len(lengths)
    for replica, step in launched:
        assert step == done[replica]
        done[replica] += 1
        share = done[replica] / lengths[replica]
        for other, length in enumerate(lengths):
            assert not length or abs(done[other] / length - share) <= 0.5 / length + 0.5 / lengths[replica] + 1e-9


@pytest.mark.parametrize("plans", [[], [[]], [[], []]])
def test_nothing_to_launch(plans: list[list[int]]) -> None:
    assert interleave(plans) == []


def test_the_longest_update_comes_first_and_clients_without_samples_not_at_all() -> None:
    assert longest_first([3, 0, 2, 1], {0: 5, 1: 9, 2: 0, 3: 9}) == [1, 3, 0]


def test_the_first_replica_is_the_most_urgent() -> None:
    assert [stream_priority(n, 0, -3) for n in range(6)] == [-3, -2, -1, 0, 0, 0]
    assert [stream_priority(n, 0, 0) for n in range(3)] == [0, 0, 0]
