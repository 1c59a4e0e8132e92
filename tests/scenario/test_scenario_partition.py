from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedfeat.scenario.partition import Split, dirichlet, even_sizes, iid, shards, shuffle_within

PUBLISHED = [  # classes, samples each, beta, sizes of the five clients, what some of them hold
    (10, 500, 0.5, [1265, 1027, 1101, 553, 1054], {0: {0: 53, 1: 205, 2: 141, 3: 359, 4: 210, 6: 297}}),
    (
        20,
        500,
        0.1,
        [2048, 2060, 1488, 1978, 2426],
        {0: {0: 3, 1: 248, 2: 27, 3: 499, 4: 342, 6: 430, 9: 31, 10: 204, 16: 264}},
    ),
    (3, 5000, 0.5, [2070, 1732, 3123, 5034, 3041], {}),
    (2, 5000, 0.5, [1971, 576, 4779, 2432, 242], {}),
]
PARTITIONERS = {
    "dirichlet": lambda classes, clients, rng: dirichlet(classes, clients, rng, 0.3),
    "plain_dirichlet": lambda classes, clients, rng: dirichlet(classes, clients, rng, 0.3, capped=False),
    "iid": iid,
    "shards": lambda classes, clients, rng: shards(classes, clients, rng, 2),
}
GENERATORS = {"modern": np.random.default_rng, "legacy": np.random.RandomState}


def blocks(*sizes: int) -> list[np.ndarray]:
    """Sample indices of classes with these sizes; class c holds the c-th block."""
    stops = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in pairwise(stops)]


def held(samples: np.ndarray, per_class: int) -> dict[int, int]:
    classes, counts = np.unique(samples // per_class, return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(("classes", "per_class", "beta", "sizes", "clients"), PUBLISHED)
def test_legacy_generator_gives_the_published_splits(classes, per_class, beta, sizes, clients):
    split = dirichlet(blocks(*[per_class] * classes), 5, np.random.RandomState(2023), beta)
    assert split.sizes.tolist() == sizes
    for client, expected in clients.items():
        assert held(split[client], per_class) == expected


def test_published_splits_miss_the_classes_that_are_known_to_be_missing():
    three = dirichlet(blocks(*[5000] * 3), 5, np.random.RandomState(2023), 0.5)
    assert 1 not in held(three[1], 5000)
    two = dirichlet(blocks(*[5000] * 2), 5, np.random.RandomState(2023), 0.5)
    assert len(held(two[3], 5000)) == 1


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("generator", GENERATORS)
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    clients=st.integers(1, 30),
    seed=st.integers(0, 2**31),
)
def test_every_sample_is_handed_out_exactly_once(partitioner, generator, sizes, clients, seed):
    classes = blocks(*sizes)
    rng = GENERATORS[generator](seed)
    split = shuffle_within(PARTITIONERS[partitioner](classes, clients, rng), rng)
    assert len(split) == clients
    assert sorted(np.concatenate(list(split)).tolist()) == list(range(sum(sizes)))


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_same_generator_same_split(partitioner):
    draw = PARTITIONERS[partitioner]
    one, same, other = (draw(blocks(90, 70, 80), 6, np.random.default_rng(s)) for s in (1, 1, 2))
    assert np.array_equal(one.indices, same.indices)
    assert np.array_equal(one.offsets, same.offsets)
    assert not np.array_equal(one.indices, other.indices)


@settings(max_examples=60, deadline=None)
@example(sizes=[1, 1], clients=4, beta=0.05, seed=3)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    clients=st.integers(1, 20),
    beta=st.sampled_from([1e-6, 0.05, 0.5, 10.0]),
    seed=st.integers(0, 2**31),
)
def test_the_cap_keeps_clients_within_one_class_of_the_even_share(sizes, clients, beta, seed):
    split = dirichlet(blocks(*sizes), clients, np.random.default_rng(seed), beta)
    # The last client also takes what rounding leaves of each class, at most one sample, whether closed or not.
    rounding = np.where(np.arange(clients) == clients - 1, len(sizes), 0)
    assert (split.sizes < sum(sizes) / clients + max(sizes) + rounding).all()


def test_without_the_cap_a_client_can_hold_far_more():
    largest = {
        capped: max(
            dirichlet(blocks(*[100] * 10), 5, np.random.default_rng(s), 0.1, capped).sizes.max() for s in range(30)
        )
        for capped in (True, False)
    }
    assert largest[True] < 300 < largest[False]


def test_when_the_cap_closes_all_chosen_clients_the_smallest_takes_the_class():
    class OneHot:
        """A generator whose proportions always point at client 0."""

        def shuffle(self, samples):
            pass

        def dirichlet(self, alpha):
            return np.eye(len(alpha))[0]

    split = dirichlet(blocks(10, 4, 3), 3, OneHot(), 1.0)
    assert split.sizes.tolist() == [10, 4, 3]
    exactly_full = dirichlet(blocks(10, 10), 2, OneHot(), 1.0)
    assert exactly_full.sizes.tolist() == [10, 10]


def test_underflowing_proportions_still_hand_everything_out():
    rng = np.random.RandomState(0)
    assert np.isnan(rng.dirichlet(np.full(3, 1e-9))).all(), "the case this test is about"
    for capped in (True, False):
        split = dirichlet(blocks(10, 10, 10), 3, np.random.RandomState(0), 1e-9, capped)
        assert split.sizes.tolist() == [10, 10, 10]


def test_smaller_beta_means_fewer_classes_per_client():
    def classes_held(beta: float) -> float:
        splits = [dirichlet(blocks(*[200] * 10), 5, np.random.default_rng(s), beta) for s in range(10)]
        return float(np.mean([len(held(samples, 200)) for split in splits for samples in split]))

    assert classes_held(0.05) + 2 < classes_held(0.5) + 1 < classes_held(100.0)


def test_iid_sizes_differ_by_at_most_one_and_all_classes_are_everywhere():
    split = iid(blocks(100, 100, 101), 4, np.random.default_rng(0))
    assert split.sizes.tolist() == [76, 75, 75, 75]
    assert all(len(held(samples, 100)) >= 3 for samples in split)


def test_shards_give_each_client_few_classes_and_equal_sizes():
    split = shards(blocks(*[100] * 10), 5, np.random.default_rng(0), 2)
    assert split.sizes.tolist() == [200] * 5
    assert all(len(held(samples, 100)) == 2 for samples in split)


def test_shards_depend_on_the_generator():
    owners = [held(shards(blocks(*[100] * 10), 5, np.random.default_rng(s), 2)[0], 100) for s in range(5)]
    assert len({tuple(o) for o in owners}) > 1


def test_shuffling_stays_within_clients():
    split = iid(blocks(50, 50), 4, np.random.default_rng(0))
    mixed = shuffle_within(split, np.random.default_rng(1))
    for before, after in zip(split, mixed, strict=True):
        assert sorted(before) == sorted(after)
        assert not np.array_equal(before, after)


@given(st.integers(0, 1000), st.integers(1, 50))
def test_even_sizes(total, parts):
    sizes = even_sizes(total, parts)
    assert sizes.sum() == total
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


def test_a_split_refuses_clients_it_does_not_have():
    split = Split.of(np.arange(3), np.array([1, 2]))
    assert split[1].tolist() == [1, 2]
    for client in (-1, 2):
        with pytest.raises(IndexError):
            split[client]
