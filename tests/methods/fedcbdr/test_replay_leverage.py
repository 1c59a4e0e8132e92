from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.errors import FedfeatError
from fedfeat.methods.fedcbdr import fedcbdr
from fedfeat.methods.fedcbdr.fedcbdr import SCORES
from fedfeat.methods.fedcbdr.leverage import allot_by_class, draw_by_score, left_singular_vectors, pass_on
from fedfeat.methods.replay import even_shares

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


def direct_leverage(features: torch.Tensor) -> torch.Tensor:
    """``x^T (X^T X)^+ x`` of every row."""
    x = features.double()
    return (x @ torch.linalg.pinv(x, rtol=1e-6)).diagonal()


def run_protocol(engine):
    """Return the scores that all clients end up with, stacked, and their features, stacked."""
    rule = engine.method.replay
    weights = engine.model.vector.clone()
    clients = [engine.client(k) for k in range(engine.scenario.num_clients)]
    masked = {c.id: rule.masked_features(c, {"weights": weights})["features"] for c in clients}
    blocks = rule._singular_blocks(masked)
    for client in clients:
        rule.leverage(client, {"vectors": blocks[client.id]})
    scores = torch.cat([c.state[SCORES] for c in clients])
    features = torch.cat([torch.cat(list(c.features(c.samples))) for c in clients])
    return SimpleNamespace(scores=scores, features=features, masked=masked, sizes=[len(c.samples) for c in clients])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_of_a_model_that_diverged_are_refused(bad):
    features = torch.ones(5, 3)
    features[2, 1] = bad
    with pytest.raises(FedfeatError, match=r"training diverged; lower train\.lr"):
        left_singular_vectors(features)


@pytest.fixture(scope="module")
def paper(start):
    return run_protocol(start("fedcbdr"))


def test_unmasked_scores_are_the_leverage_of_the_stacked_features(paper):
    exact = direct_leverage(paper.features)
    assert exact.std() / exact.mean() > 0.2
    assert torch.allclose(paper.scores, exact, atol=1e-5)


def test_scores_sum_to_the_rank_of_the_features(paper):
    rank = int(torch.linalg.matrix_rank(paper.features.double(), rtol=1e-6))
    assert float(paper.scores.sum()) == pytest.approx(rank, abs=1e-4)
    assert paper.scores.min() >= 0
    assert paper.scores.max() <= 1 + 1e-6


def test_masked_features_hide_samples_and_keep_only_their_second_moments(paper):
    first = paper.features[: paper.sizes[0]].double()
    hidden = paper.masked[0].double()
    assert (hidden[:, None] - first[None]).abs().amax(dim=2).min() > 1e-3
    assert torch.allclose(torch.linalg.svdvals(hidden), torch.linalg.svdvals(first), rtol=1e-4, atol=1e-4)


def test_scores_do_not_depend_on_the_rotation_of_features(paper, start, monkeypatch):
    monkeypatch.setattr(fedcbdr, "shared_rotation", lambda seed, task, dim, device: torch.eye(dim).double())
    assert torch.allclose(run_protocol(start("fedcbdr")).scores, paper.scores, atol=1e-5)


@pytest.mark.parametrize("block", [1, 7, 4096])
def test_scores_do_not_depend_on_the_blocks_of_the_mask(paper, start, block):
    scores = run_protocol(start("fedcbdr", fedcbdr={"mask_block": block})).scores
    assert torch.allclose(scores, paper.scores, atol=1e-5)


def test_scores_of_masked_rows_are_not_leverage(paper):
    """The released code skips the un-masking: its scores say nothing about the samples."""
    stacked = left_singular_vectors(torch.cat(list(paper.masked.values())))
    masked_scores = stacked.square().sum(dim=1)
    assert not torch.allclose(masked_scores, paper.scores, atol=1e-2)
    assert np.corrcoef(masked_scores, paper.scores)[0, 1] < 0.4


def test_released_mode_scores_masked_rows_of_each_client_alone(start):
    engine = start("fedcbdr", fedcbdr={"mode": "repo"})
    result = run_protocol(engine)
    own = [left_singular_vectors(f).square().sum(dim=1) for f in result.masked.values()]
    assert torch.allclose(result.scores, torch.cat(own), atol=1e-5)
    assert not torch.allclose(result.scores, direct_leverage(result.features), atol=1e-2)


def test_rank_deficient_features_have_finite_scores_that_sum_to_their_rank(start):
    engine = start("fedcbdr")
    values = engine.model.named_values()
    last = [n for n in values if n.endswith("running_var")][-1].removesuffix("running_var")
    values[last + "weight"][:6] = 0.0  # six dead features
    result = run_protocol(engine)
    assert (result.features[:, :6] == 0).all()
    assert torch.allclose(result.scores, direct_leverage(result.features), atol=1e-5)
    assert float(result.scores.sum()) == pytest.approx(10, abs=1e-4)


@PROPERTY
@given(seed=st.integers(0, 999), rows=st.integers(1, 30), rank=st.integers(1, 6))
def test_thin_singular_vectors_have_as_many_columns_as_the_rank(seed, rows, rank):
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(rows, rank, generator=generator).double(), torch.randn(rank, 8, generator=generator).double()
    vectors = left_singular_vectors(factors[0] @ factors[1])
    assert vectors.shape == (rows, min(rows, rank))
    assert torch.allclose(vectors.T @ vectors, torch.eye(vectors.shape[1], dtype=torch.float64), atol=1e-9)


def test_features_that_are_all_zero_have_no_singular_vectors():
    assert left_singular_vectors(torch.zeros(4, 3)).shape == (4, 0)


def test_reports_hold_the_sum_of_scores_and_nothing_else(start):
    engine = start("fedcbdr")
    client = engine.client(0)
    report = engine.method.replay.leverage(client, {"vectors": torch.ones(len(client.samples), 2)})
    assert report == {"mass": pytest.approx(2.0 * len(client.samples))}


def test_reports_by_class_count_and_add_up(start):
    engine = start("fedcbdr", fedcbdr={"mode": "class_quota"})
    run_protocol(engine)
    client = engine.client(1)
    rule = engine.method.replay
    vectors = torch.randn(len(client.samples), 3, generator=torch.Generator().manual_seed(0))
    report = rule.leverage(client, {"vectors": vectors})
    labels = client.labels(client.samples)
    for label in (0, 1):
        assert int(report["counts"][label]) == int((labels == label).sum())
        mass = client.state[SCORES][labels == label].sum()
        assert float(report["masses"][label]) == pytest.approx(float(mass), rel=1e-5)


# Draws


def draw(scores, count, seed=0, replacement=False):
    return draw_by_score(np.asarray(scores, dtype=float), count, np.random.default_rng(seed), replacement=replacement)


@PROPERTY
@given(scores=st.lists(st.floats(0, 1), max_size=20), count=st.integers(0, 30), seed=st.integers(0, 99))
def test_draws_without_replacement_are_distinct_and_capped(scores, count, seed):
    chosen = draw(scores, count, seed)
    assert len(set(chosen.tolist())) == len(chosen) == min(count, len(scores))
    assert all(0 <= c < len(scores) for c in chosen)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_draws_with_replacement_fill_the_count(count):
    assert len(draw([0.1, 0.9], count, replacement=True)) == count


def test_nobody_can_be_drawn_from_nobody():
    assert len(draw([], 5, replacement=True)) == 0


def test_scores_of_zero_come_last():
    scores = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    for seed in range(20):
        assert set(draw(scores, 2, seed).tolist()) == {1, 3}
        assert len(draw(scores, 5, seed)) == 5


def test_rounding_below_zero_is_harmless():
    assert sorted(draw([-1e-17, 1.0, 0.5], 3).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_follow_the_scores(replacement):
    first = [draw([1.0, 2.0, 5.0], 1, seed, replacement)[0] for seed in range(3000)]
    shares = np.bincount(first, minlength=3) / 3000
    assert np.allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=0.03)


# Allotment


@PROPERTY
@given(
    clients=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8),
    extra=st.integers(0, 40),
)
def test_unused_quota_is_passed_on_within_what_is_available(clients, extra):
    wanted, available = (np.array(column) for column in zip(*clients, strict=True))
    total = int(wanted.sum()) + extra
    given_out = pass_on(wanted, available, total)
    assert given_out.sum() == min(total, available.sum())
    assert (given_out <= available).all()
    assert (given_out >= np.minimum(wanted, available)).all()


def test_passing_on_by_hand():
    assert pass_on(np.array([10, 10, 10]), np.array([4, 50, 50]), 30).tolist() == [4, 13, 13]
    assert pass_on(np.array([10, 10, 10]), np.array([5, 12, 50]), 30).tolist() == [5, 12, 13]


def federation(quotas):
    return TaskEnd(
        exchange=None,
        task=0,
        num_new=2,
        weights=torch.empty(0),
        quotas=dict(enumerate(quotas)),
        shares_budget=True,
        seed=0,
        server=None,
    )


def class_reports(counts, masses):
    return {
        k: {"counts": torch.tensor(c).int(), "masses": torch.tensor(m).float()}
        for k, (c, m) in enumerate(zip(counts, masses, strict=True))
    }


@st.composite
def held_by_class(draw_value):
    clients, classes = draw_value(st.integers(1, 7)), draw_value(st.integers(1, 5))
    row = st.lists(st.integers(0, 40), min_size=classes, max_size=classes)
    return draw_value(st.lists(row, min_size=clients, max_size=clients))


@PROPERTY
@given(counts=held_by_class(), budget=st.integers(0, 450), seed=st.integers(0, 99))
def test_classes_get_even_shares_split_over_clients_within_what_they_hold(counts, budget, seed):
    masses = np.random.default_rng(seed).random((len(counts), len(counts[0]))) * np.sign(counts)
    shares = allot_by_class(budget, class_reports(counts, masses))
    table = torch.stack([shares[k] for k in range(len(counts))])
    assert table.sum(dim=0).tolist() == even_shares(np.sum(counts, axis=0).tolist(), budget)
    assert (table >= 0).all()
    assert (table <= torch.tensor(counts)).all()


def test_a_class_is_split_by_the_clients_leverage_in_it():
    counts, masses = [[50], [50], [50]], [[0.5], [0.3], [0.2]]
    shares = allot_by_class(20, class_reports(counts, masses))
    assert [int(shares[k]) for k in range(3)] == [10, 6, 4]


def test_a_class_nobody_has_leverage_in_is_still_kept():
    shares = allot_by_class(4, class_reports([[5], [5]], [[0.0], [0.0]]))
    assert sum(int(s) for s in shares.values()) == 4


@pytest.mark.parametrize("mode", ["paper", "repo", "global", "class_quota"])
def test_seven_clients_share_a_budget_of_450(mode, start, task_end_of, kept):
    scenario = {"tasks": 2, "clients": 7, "budget": 450, "partition": "dirichlet"}
    engine = start("fedcbdr", scenario=scenario, fedcbdr={"mode": mode})
    task_end = task_end_of(engine)
    assert sorted(task_end.quotas.values()) == [64] * 5 + [65] * 2
    assert sum(map(len, kept(engine, task_end))) == 450


def test_class_quota_keeps_as_many_of_each_class(start, task_end_of, kept):
    engine = start(
        "fedcbdr", scenario={"budget": 60, "partition": "dirichlet", "beta": 0.3}, fedcbdr={"mode": "class_quota"}
    )
    held = torch.cat(kept(engine, task_end_of(engine)))
    assert torch.bincount(engine.train_images.labels[held]).tolist() == [30, 30]


def test_a_client_without_samples_passes_its_quota_on(start, task_end_of, kept):
    engine = start(
        "fedcbdr",
        scenario={"clients": 40, "budget": 80, "partition": "plain_dirichlet", "beta": 0.05, "min_samples": 0},
    )
    sizes = [len(engine.client(k).samples) for k in range(40)]
    assert min(sizes) == 0
    held = kept(engine, task_end_of(engine))
    assert sum(map(len, held)) == 80
    assert all(len(h) <= size for h, size in zip(held, sizes, strict=True))


def test_no_scores_stay_behind_in_a_clients_state(start, task_end_of, kept):
    engine = start("fedcbdr")
    kept(engine, task_end_of(engine))
    assert all(set(state) == {"exemplars"} for state in engine.states.values())


def test_sample_ids_and_labels_never_reach_the_server(start, task_end_of, kept):
    engine = start("fedcbdr")
    task_end = task_end_of(engine)
    kept(engine, task_end)
    sent = {key for key in task_end.exchange.traffic.counts if key.startswith("up/")}
    assert sent == {"up/masked_features/features", "up/leverage/mass"}
