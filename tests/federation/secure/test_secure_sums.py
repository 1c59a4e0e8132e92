"""Replies as integers: they add up in any order and modulo 2^k, and the sum is read as one reply of all clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from masked_toys import SIZES, ToyEngine, asked, config_with, trained

from fedfeat.algorithm.engine import DropOut
from fedfeat.algorithm.sent import Sent
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.federation.progress import Progress
from fedfeat.federation.secure.exchange import JOINED
from fedfeat.federation.secure.sums import (
    BEHIND,
    Sums,
    UnusableSum,
    added,
    check_norm,
    check_sum,
    decoded,
    encoded,
    from_payload,
    of_several,
    to_payload,
)
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

numbers = st.lists(st.floats(-60, 60, width=32), min_size=3, max_size=3)


def sums_of(config: Any) -> Sums:
    return Sums(config, config.build_method(), private=False)


def joined(sums: Sums, op: str, request: Payload, replies: list[Payload], task: int = 0) -> Payload:
    layout = sums.layout(op, request, {**SIZES, "task": task})
    total = None
    for reply in replies:
        total = added(total, encoded(reply, request, layout))
    assert total is not None
    check_sum(total, layout, len(replies))
    return decoded(total, request, layout)


@given(
    st.lists(st.tuples(numbers, st.integers(0, 500)), min_size=1, max_size=6), st.sampled_from(["uniform", "samples"])
)
def test_the_sum_is_the_mean_of_updates_and_losses(clients: list[tuple[list[float], int]], how: str) -> None:
    config = config_with(6, train={"aggregation": how}, privacy={"bits": 64} if how == "samples" else {})
    request: Payload = {"weights": torch.tensor([1.0, -2.0, 0.25])}
    replies: list[Payload] = []
    for change, count in clients:
        reply = trained((torch.tensor(change) + tensor_of(request, "weights")).tolist(), count)
        replies.append({**reply, "loss.ce": count / 7} if count else {"samples": 0})
    found = joined(sums_of(config), "train", request, replies)
    counts = np.array([count for _, count in clients])
    assert found["samples"] == counts.sum()
    if counts.sum() == 0:
        assert found == {"samples": 0}
        return
    weights = (counts > 0).astype(float) if how == "uniform" else counts.astype(float)
    mean = np.average([c for c, _ in clients], axis=0, weights=weights) + np.array([1.0, -2.0, 0.25])
    assert tensor_of(found, "weights").numpy() == pytest.approx(mean, abs=2e-5)
    assert found["loss.ce"] == pytest.approx(np.average(counts / 7, weights=counts), abs=1e-6)


@given(st.permutations(range(4)), st.integers(0, 2**32))
def test_neither_order_nor_masks_that_cancel_change_a_bit(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    request: Payload = {"weights": torch.zeros(3)}
    layout = sums_of(config_with(4)).layout("train", request, SIZES)
    whole = [encoded(trained(rng.normal(size=3).astype(np.float32).tolist()), request, layout) for _ in range(4)]
    masks = [
        {n: rng.integers(0, 2**63, a.shape, np.uint64).astype(a.dtype) for n, a in whole[0].items()} for _ in order
    ]
    plain = masked = None
    for k in range(4):
        plain = added(plain, whole[k])
        masked = added(masked, whole[order[k]])
        masked = added(masked, masks[k])
    assert masked is not None
    assert plain is not None
    assert any((masked[n] != plain[n]).any() for n in plain)
    for mask in masks:
        masked = {n: masked[n] - mask[n] for n in masked}
    assert all((masked[n] == plain[n]).all() for n in plain)


def test_rows_of_the_classes_that_clients_hold_become_rows_of_all_classes() -> None:
    held = [([0, 2], [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]], [3, 1]), ([2], [[1.0, 0.0, -1.0]], [2])]
    replies: list[Payload] = [
        {
            "gram": torch.arange(6).double() * (k + 1),
            "held_classes": torch.tensor(classes),
            "class_sums": torch.tensor(rows, dtype=torch.float64),
            "class_counts": torch.tensor(counts),
        }
        for k, (classes, rows, counts) in enumerate(held)
    ]
    found = joined(sums_of(config_with(3, "analytic")), "feature_sums", {}, [*replies, {}])
    assert tensor_of(found, "gram").tolist() == [0, 3, 6, 9, 12, 15]
    assert tensor_of(found, "held_classes").tolist() == [0, 1, 2, 3]
    assert tensor_of(found, "class_counts").tolist() == [3, 0, 3, 0]
    assert tensor_of(found, "class_sums").tolist() == [[1, 2, 3], [0, 0, 0], [1.5, 0.5, -0.5], [0, 0, 0]]
    assert tensor_of(found, "class_sums").dtype == torch.float64


def test_energy_priors_are_a_mean_by_exemplars_and_absent_in_the_first_task() -> None:
    sums, request = sums_of(config_with(3, "replay+feat")), {"weights": torch.zeros(3)}
    priors = [(0.25, 0.5, 30), (0.75, 0.1, 10), (0.0, 0.0, 0)]
    replies = [trained([0.0] * 3, prior_head=h, prior_tail=t, num_tail=n) for h, t, n in priors]
    found = joined(sums, "train", request, replies, task=1)
    assert found["num_tail"] == 40
    assert found["prior_head"] == pytest.approx((30 * 0.25 + 10 * 0.75) / 40, abs=1e-6)
    assert found["prior_tail"] == pytest.approx((30 * 0.5 + 10 * 0.1) / 40, abs=1e-6)
    assert "prior_head" not in joined(sums, "train", request, replies, task=0)


@given(st.integers(2, 200), st.one_of(st.none(), st.floats(0.501, 1)))
def test_two_groups_that_could_open_a_sum_have_a_client_in_common(clients: int, share: float | None) -> None:
    """So a server that tells two stories about a client gets too few shares for one of them."""
    threshold = sums_of(config_with(3, privacy={} if share is None else {"threshold": share})).threshold(clients)
    assert clients < 2 * threshold <= 2 * clients
    assert threshold >= clients * (share or 0.5) - 1e-6


def test_a_mean_over_no_exemplars_is_zero_as_a_single_client_says_it() -> None:
    """The sum passes the screen, and EGC says that nobody holds an exemplar."""
    none = {"prior_head": 0.0, "prior_tail": 0.0, "num_tail": 0, "loss.gsa": 0.5}
    engine = ToyEngine(config_with(3, "replay+feat"), {k: trained([0.0] * 3, **none) for k in range(3)})
    engine.task = 1
    exchange = engine.exchange()
    ((_, reply),) = exchange("train", asked(3, [0.0] * 3))
    assert {name: reply[name] for name in none} == pytest.approx(none)
    (statistic,) = engine.method.statistics
    with pytest.warns(UserWarning, match="no client holds an exemplar"):
        assert statistic.reduce([reply]) == {}


def test_a_sum_may_be_as_many_times_larger_as_there_are_clients() -> None:
    sends = sums_of(config_with(3, "replay+feat+calibrate")).sends
    scaled = of_several(sends, SIZES, 3)
    assert scaled["prior_head"].high == 1
    assert of_several({"x": Sent("up/a/x", low=-2, high="d")}, SIZES, 3)["x"].high == 9
    assert scaled["num_tail"] == sends["num_tail"]


def test_a_change_beyond_the_limit_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    request: Payload = {"weights": torch.tensor([10.0, 0.0, 0.0])}
    config = config_with(3, privacy={"largest": 2.0})
    with caplog.at_level("WARNING", logger="fedfeat.client"):
        found = joined(sums_of(config), "train", request, [trained([15.0, -7.0, 1.0])])
    assert tensor_of(found, "weights").tolist() == [12.0, -2.0, 1.0]
    assert "2 numbers beyond 2 were cut" in caplog.text


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_number_modulo_anything(odd: float) -> None:
    request: Payload = {"weights": torch.zeros(3)}
    layout = sums_of(config_with(3)).layout("train", request, SIZES)
    with pytest.raises(DropOut) as dropped:
        encoded(trained([0.0, odd, 0.0]), request, layout)
    assert dropped.value.lost.diverged
    with pytest.raises(DropOut, match="behind a masked mean"):
        encoded(trained([0.0] * 3, 2**20 + 1), request, layout)


def test_a_sum_that_clients_cannot_have_sent_is_not_used() -> None:
    request: Payload = {"weights": torch.zeros(3)}
    layout = sums_of(config_with(3)).layout("train", request, SIZES)
    honest = encoded(trained([1.0, 2.0, 3.0]), request, layout)
    check_sum(honest, layout, 1)
    for name, place, number in (("weights", 1, 2**30), (BEHIND, 0, 2), (BEHIND, 1, 2**63), ("samples", 0, 2**62)):
        spoilt = {k: v.copy() for k, v in honest.items()}
        spoilt[name][place] = number
        with pytest.raises(UnusableSum):
            check_sum(spoilt, layout, 1)
    mean: Payload = {"weights": torch.tensor([0.6, 0.8, 100.0])}  # the third is a running statistic
    check_norm(mean, request, 2, 1.0, 0.0)
    with pytest.raises(UnusableSum, match=r"clipped to 0\.9 has norm 1"):
        check_norm(mean, request, 2, 0.9, 0.0)
    check_norm(mean, request, 2, 0.9, 1.0)


@pytest.mark.parametrize("change", [{"weights": torch.zeros(3)}, {"more": torch.zeros(1)}, {BEHIND: None}])
def test_a_masked_reply_of_another_form_is_refused(change: Payload) -> None:
    request: Payload = {"weights": torch.zeros(3)}
    layout = sums_of(config_with(3)).layout("train", request, SIZES)
    whole = to_payload(encoded(trained([0.0] * 3), request, layout))
    assert from_payload(whole, layout).keys() == whole.keys()
    with pytest.raises(DropOut):
        from_payload({k: v for k, v in {**whole, **change}.items() if v is not None}, layout)


def test_an_unusable_sum_leaves_the_model_as_it_was() -> None:
    engine = ToyEngine(config_with(3, privacy={"clip": 1.0}), {k: trained([5.0, 0, 0]) for k in range(3)})
    exchange = engine.exchange()
    assert exchange.gather("train", asked(3, [0.0, 0, 0])) == {}
    (outcome,) = exchange.take_outcomes()
    assert "clipped to 1 has norm 5" in outcome.record()["discarded"]
    assert not outcome.whole


def test_one_reply_of_all_comes_of_an_exchange() -> None:
    engine = ToyEngine(config_with(3), {k: trained([float(k), 0, 0]) for k in range(3)})
    ((client, reply),) = engine.exchange()("train", asked(3, [0.0, 0, 0]))
    assert client == JOINED
    assert tensor_of(reply, "weights").tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("method", "changes", "named"),
    [
        ("fedcbdr+feat", {}, "'features' of fedcbdr"),
        ("fedcbdr", {}, "client by client"),
        ("replay+feat", {"train": {"robust": "median"}}, "train.robust: median compares single replies"),
        ("replay+feat", {"train": {"aggregation": "samples"}}, "set privacy.bits = 64"),
        ("replay+feat", {"privacy": {"threshold": 0.5}}, "greater than 0.5"),
        ("replay+feat", {"privacy": {"secure_aggregation": None, "bits": 64}}, "no meaning without secure_aggregation"),
    ],
)
def test_what_cannot_work_in_sums_is_refused(method: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        config_with(3, method, **changes)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"federation": {"quorum": 0.4}}, "federation.quorum: 0.4 of the clients"),
        ({"federation": {"quorum": 0.7}, "privacy": {"threshold": 0.8}}, "set federation.quorum = 0.8 or more"),
        ({"scenario": {"participation": 2}}, "clients in a round of task 1 is 2, and a masked sum needs at least 3"),
        ({"privacy": {"fewest_clients": 4}}, "at least 4"),
    ],
)
def test_rounds_of_too_few_are_refused_before_anything_is_written(changes: dict[str, Any], named: str) -> None:
    privacy = {"secure_aggregation": True, **changes.pop("privacy", {})}
    with pytest.raises(ConfigError, match=named):
        Experiment(toy_config("finetune", privacy=privacy, **changes), toy_dataset())


@pytest.mark.parametrize("method", ["replay+feat", "replay+etf+balanced+distil", "analytic", "herding+ncm", "finetune"])
def test_methods_whose_replies_add_up_are_taken(method: str) -> None:
    assert sums_of(config_with(3, method)).ops


@pytest.mark.parametrize("method", ["replay+feat", "analytic", "herding+ncm", "refed+feat+calibrate"])
@pytest.mark.parametrize("how", ["uniform", "samples"])
def test_a_server_that_sees_sums_ends_as_one_that_sees_replies(method: str, how: str, tmp_path: Path) -> None:
    """So what a method declares as a sum is joined as one: weights, priors, class means, Gram matrices."""
    ended = []
    for privacy in ({}, {"secure_aggregation": True, "bits": 64}):
        config = toy_config(method, privacy=privacy, scenario={"tasks": 2}, train={"aggregation": how})
        experiment, progress = Experiment(config, toy_dataset()), Progress()
        experiment.run(RunFolder.create(tmp_path / str(len(ended)), config, {}), progress, ())
        ended.append(progress)
    plain, summed = ended
    assert summed.numbers == pytest.approx(plain.numbers, abs=1e-3)
    assert summed.tensors.keys() == plain.tensors.keys()
    for name, tensor in {**plain.tensors, "weights": plain.weights}.items():
        torch.testing.assert_close({**summed.tensors, "weights": summed.weights}[name], tensor, atol=1e-3, rtol=1e-4)
    assert summed.images_trained == plain.images_trained
