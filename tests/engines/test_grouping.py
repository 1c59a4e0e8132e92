"""Which clients step together: a plan that can be checked without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.engines.cuda.local_update import batch_sizes
from fedfeat.engines.grouping import (
    FEWEST_CLIENTS,
    MIB,
    MOST_ROWS,
    Group,
    even_parts,
    filled,
    padded,
    pays,
    plan_rows,
    plan_steps,
)

SAMPLES = st.lists(st.integers(0, 90), max_size=12)


@given(SAMPLES, st.integers(1, 32), st.integers(1, 3))
def test_every_client_sees_its_own_batches_in_its_own_order(samples: list[int], batch: int, epochs: int) -> None:
    steps = plan_steps(samples, batch, epochs)
    for client, count in enumerate(samples):
        assert [s.size for s in steps if client in s.members] == batch_sizes(count, batch, epochs)


@given(SAMPLES, st.integers(1, 32), st.integers(1, 3))
def test_nobody_is_in_a_group_twice_and_no_plan_is_shorter(samples: list[int], batch: int, epochs: int) -> None:
    steps = plan_steps(samples, batch, epochs)
    assert all(step.members and len(set(step.members)) == len(step.members) for step in steps)
    rests = {n % batch for n in samples} - {0}
    assert len(steps) == epochs * (max(samples, default=0) // batch + len(rests))


def test_a_plan_by_hand() -> None:
    assert plan_steps([5, 2, 0, 7, 4], 4, 1) == [
        Group(4, (0, 3, 4)),
        Group(3, (3,)),
        Group(2, (1,)),
        Group(1, (0,)),
    ]


def test_equal_clients_always_step_together() -> None:
    assert filled([50] * 50, 10) == 1.0
    assert filled([1000, 10, 10, 10], 10) == pytest.approx((4 + 99) / 400)
    assert filled([], 10) == 0.0


def test_memory_and_the_user_limit_the_rows() -> None:
    assert plan_rows(0, 10**15, MIB) == MOST_ROWS
    assert plan_rows(7, 10**15, MIB) == 7
    assert plan_rows(0, 100 * MIB, 10 * MIB) == 7  # a quarter stays free
    assert plan_rows(0, 0, MIB) == 1


def test_small_steps_of_many_equal_clients_pay() -> None:
    many = [50] * FEWEST_CLIENTS
    assert pays("cuda", many, 10, MIB)
    assert not pays("cpu", many, 10, 1)
    assert pays("cuda", many, 10, 2 * MIB)
    assert not pays("mps", many, 10, MIB)
    assert not pays("cuda", many[1:], 10, MIB)
    assert not pays("cuda", many, 10, 1000 * MIB)
    assert not pays("cuda", [*many, 5000], 10, MIB)


@given(st.integers(1, 200), st.integers(1, 200))
def test_captured_steps_have_few_sizes_and_room_for_all(count: int, most: int) -> None:
    places = padded(count, max(count, most))
    assert count <= places <= min(2 * count, max(count, most))
    assert places == max(count, most) or places & (places - 1) == 0


@given(st.lists(st.integers(), max_size=40), st.integers(1, 12))
def test_parts_are_even_and_complete(clients: list[int], most: int) -> None:
    parts = even_parts(clients, most)
    assert [k for part in parts for k in part] == clients
    assert len(parts) == -(-len(clients) // most)
    lengths = [len(p) for p in parts]
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
