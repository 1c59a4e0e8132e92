import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.methods.replay import even_shares, herd

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=9)
RULES = {
    "replay": {},
    "herding": {},
    "refed": {"refed": {"passes": 1}},
    "fedcbdr": {},
    "fedcbdr repo": {"fedcbdr": {"mode": "repo"}},
    "fedcbdr global": {"fedcbdr": {"mode": "global"}},
    "fedcbdr class_quota": {"fedcbdr": {"mode": "class_quota"}},
}
BY_CLIENT = [r for r in RULES if r not in {"fedcbdr global", "fedcbdr class_quota"}]  # a quota for each client
WITHOUT_DUPLICATES = [r for r in RULES if r != "fedcbdr repo"]


def test_herding_by_hand():
    """Rows 0 and 3 point the same way; the diagonal is nearest to the mean of directions."""
    features = torch.tensor([[1.0, 0.0], [0.0, 5.0], [3.0, 3.0], [2.0, 0.0]])
    assert herd(features, 4).tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_herding_keeps_the_first_of_the_whole_order(count):
    features = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    assert herd(features, count).tolist() == herd(features, 10).tolist()[:count]


def test_herding_never_asks_for_more_than_there_is():
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert sorted(herd(features, 50).tolist()) == [0, 1, 2, 3, 4]


@PROPERTY
@given(seed=st.integers(0, 1000), rows=st.integers(1, 12))
def test_every_herded_row_brings_the_running_mean_closest(seed, rows):
    features = torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    unit = torch.nn.functional.normalize(features, dim=1)
    chosen: list[int] = []
    for pick in herd(features, rows).tolist():
        free = [r for r in range(rows) if r not in chosen]
        distance = {r: float((unit[[*chosen, r]].mean(dim=0) - unit.mean(dim=0)).norm()) for r in free}
        assert distance[pick] <= min(distance.values()) + 1e-9
        chosen.append(pick)


@PROPERTY
@given(counts=COUNTS, total=st.integers(0, 500))
def test_even_shares_use_the_whole_total_within_the_sizes(counts, total):
    shares = even_shares(counts, total)
    assert sum(shares) == min(total, sum(counts))
    assert all(0 <= s <= c for s, c in zip(shares, counts, strict=True))


@PROPERTY
@given(counts=COUNTS, total=st.integers(0, 500))
def test_a_group_with_room_is_at_most_one_behind_and_only_behind_an_earlier_one(counts, total):
    shares = even_shares(counts, total)
    for i, (share, count) in enumerate(zip(shares, counts, strict=True)):
        if share < count:
            assert all(other <= share + (j < i) for j, other in enumerate(shares))


@pytest.mark.parametrize(
    ("counts", "total", "shares"),
    [([100] * 7, 450, [65, 65, 64, 64, 64, 64, 64]), ([2, 9, 9], 12, [2, 5, 5]), ([3, 0], 9, [3, 0]), ([], 5, [])],
)
def test_even_shares_by_hand(counts, total, shares):
    assert even_shares(counts, total) == shares


@pytest.mark.parametrize("rule", RULES)
def test_after_each_task_the_federation_holds_one_more_budget(rule, start, task_end_of, kept):
    engine = start(rule.split()[0], **RULES[rule])
    held = [torch.empty(0, dtype=torch.long)] * 3
    for task in range(3):
        engine.begin_task(task)
        held, before = kept(engine, task_end_of(engine)), held
        assert sum(map(len, held)) == 30 * (task + 1)
        for client, (now, earlier) in enumerate(zip(held, before, strict=True)):
            assert torch.equal(now[: len(earlier)], earlier)
            assert set(now[len(earlier) :].tolist()) <= set(engine.client(client).samples.tolist())


@pytest.mark.parametrize("rule", BY_CLIENT)
def test_the_budget_is_split_evenly_over_clients(rule, start, task_end_of, kept):
    engine = start(rule.split()[0], scenario={"budget": 32}, **RULES[rule])
    assert list(map(len, kept(engine, task_end_of(engine)))) == [11, 11, 10]


@pytest.mark.parametrize("rule", WITHOUT_DUPLICATES)
def test_no_exemplar_is_kept_twice(rule, start, task_end_of, kept):
    engine = start(rule.split()[0], scenario={"budget": 150}, **RULES[rule])
    everything = torch.cat(kept(engine, task_end_of(engine))).tolist()
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("rule", RULES)
def test_selection_depends_on_nothing_but_the_configuration(rule, start, task_end_of, kept):
    held = []
    for seed in range(2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        engine = start(rule.split()[0], **RULES[rule])
        held.append(kept(engine, task_end_of(engine)))
    assert all(torch.equal(a, b) for a, b in zip(*held, strict=True))


@pytest.mark.parametrize("rule", WITHOUT_DUPLICATES)
def test_a_budget_beyond_the_data_keeps_every_sample_once(rule, start, task_end_of, kept):
    engine = start(rule.split()[0], scenario={"budget": 5000}, **RULES[rule])
    for client, held in enumerate(kept(engine, task_end_of(engine))):
        assert sorted(held.tolist()) == sorted(engine.client(client).samples.tolist())


@pytest.mark.parametrize("rule", BY_CLIENT)
def test_no_client_outgrows_a_budget_of_its_own(rule, start, task_end_of, kept):
    """With a budget per client, what one client cannot fill is not another client's to use."""
    scenario = {"partition": "dirichlet", "beta": 0.3, "budget_scope": "per_client_per_task", "budget": 40}
    engine = start(rule.split()[0], scenario=scenario, **RULES[rule])
    sizes = [len(engine.client(k).samples) for k in range(3)]
    assert min(sizes) < 40 < max(sizes)
    held = list(map(len, kept(engine, task_end_of(engine))))
    if rule == "fedcbdr repo":  # draws with replacement fill every quota
        assert held == [40, 40, 40]
    else:
        assert held == [min(40, size) for size in sizes]


def test_joint_training_keeps_everything(start, task_end_of, kept):
    engine = start("joint")
    for client, held in enumerate(kept(engine, task_end_of(engine))):
        assert torch.equal(held, engine.client(client).samples)


def test_herding_keeps_each_class_by_its_own_mean(start, task_end_of, kept):
    engine = start("herding", scenario={"budget": 18})
    held = kept(engine, task_end_of(engine))[0]
    client = engine.client(0)
    labels = client.labels(client.samples)
    expected = []
    for label in (0, 1):
        members = client.samples[labels == label]
        expected += members[herd(torch.cat(list(client.features(members))), 3)].tolist()
    assert held.tolist() == expected
