"""Replies are looked at one by one and beside each other."""

from __future__ import annotations

import math

import pytest
import torch

from fedfeat.algorithm.sent import Sent, in_words
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.messages import Header
from fedfeat.federation.evaluation import SENDS
from fedfeat.federation.screen import fault_of, fault_of_header, is_finite, odd_ones, seconds_of
from fedfeat.methods import PARTS

W = torch.zeros(4)
REQUEST: Payload = {"weights": W}
GOOD: Payload = {"weights": W, "samples": 3, "loss.ce": 0.5}
SIZES = {"trained": 9, "C": 5, "N": 2}
DECLARED = {s.name: s for part in PARTS.values() for s in part.sends if s.up} | SENDS


def fault(op: str, request: Payload, reply: Payload, sends: dict[str, Sent] = DECLARED) -> str | None:
    return fault_of(op, request, reply, sends, SIZES)


def test_a_sound_reply_passes() -> None:
    assert fault("train", REQUEST, GOOD, {}) is None
    assert fault("train", REQUEST, {"samples": 0}, {}) is None
    assert fault("train", REQUEST, {**GOOD, "prior_head": 1.0}) is None
    assert fault("train", REQUEST, {**GOOD, "mine": W}, {"mine": in_words("in words alone", "mine")}) is None
    assert fault("keep", {"quota": 3}, {}, {}) is None


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        ({**GOOD, "weights": torch.tensor([0, 0, 0, math.nan])}, "weights"),
        ({**GOOD, "weights": torch.tensor([0, 0, 0, -math.inf])}, "weights"),
        ({**GOOD, "loss.ce": math.nan}, "loss.ce"),
        ({**GOOD, "weights": W.double()}, "weights: expected float32 [4], got float64 [4]"),
        ({**GOOD, "weights": torch.zeros(5)}, "weights: expected float32 [4], got float32 [5]"),
        ({**GOOD, "weights": 1.0}, "weights: expected float32 [4], got float"),
        ({"samples": 3}, "weights: expected float32 [4], got nothing"),
        ({"weights": W}, "samples"),
        ({**GOOD, "samples": -1}, "samples"),
        ({**GOOD, "samples": 2.5}, "samples"),
        ({**GOOD, "images": W}, "images: not among what this method sends"),
        ({**GOOD, "loss.ce": 10**400}, "loss.ce: not a finite number"),
        ({**GOOD, "loss.extra": "abc"}, "loss.extra: expected a number, got str"),
        ({**GOOD, "loss.extra": W}, "loss.extra: expected a number, got float32 [4]"),
        ({**GOOD, "samples": 10**300}, "samples"),
    ],
)
def test_an_unfit_reply_is_named(reply: Payload, named: str) -> None:
    assert (fault("train", REQUEST, reply, {}) or "").startswith(named)


def test_whole_numbers_are_finite_whatever_they_are() -> None:
    assert is_finite(torch.tensor([2**62]))
    assert is_finite("nan")
    assert not is_finite(torch.tensor([1.0, math.inf], dtype=torch.bfloat16))


def test_the_odd_one_among_replies_is_found() -> None:
    usual: Payload = {"samples": 2, "features": torch.zeros(5, 3), "mass": 1.0}
    replies = {0: usual, 1: {**usual, "features": torch.zeros(2, 3)}, 2: {**usual, "features": torch.zeros(5, 4)}}
    assert list(odd_ones(replies, DECLARED)) == [2], "the first dimension may differ, others may not"
    replies = {0: usual, 1: {**usual, "mass": torch.zeros(1)}, 2: usual}
    assert list(odd_ones(replies, DECLARED)) == [1]
    replies = {0: {k: v for k, v in usual.items() if k != "mass"}, 1: usual, 2: {}, 3: {"samples": 0}}
    assert odd_ones(replies, DECLARED) == {0: "mass: nothing is unlike that of other clients"}


def test_a_loss_may_be_missing() -> None:
    replies: dict[int, Payload] = {0: {**GOOD, "loss.kd": 1.0}, 1: GOOD, 2: GOOD}
    assert odd_ones(replies, DECLARED) == {}
    first: Payload = {**GOOD, "loss.first_epoch": 1.0}
    assert list(odd_ones({0: first, 1: GOOD, 2: first}, {})) == [1], "the one that every client sends may not"


def test_tables_of_one_size_are_compared_whole() -> None:
    usual: Payload = {"right": torch.zeros(3, 4, 2), "held_out": torch.zeros(2)}
    replies = {0: {**usual, "right": torch.zeros(2, 4, 2)}, 1: usual, 2: usual, 3: {}}
    assert list(odd_ones(replies, DECLARED)) == [0]
    assert list(odd_ones({0: usual, 1: usual, 2: {**usual, "held_out": torch.zeros(3)}}, DECLARED)) == [2]


def test_an_operation_that_always_has_an_answer_may_not_be_answered_with_nothing() -> None:
    assert fault("leverage", {}, {}) == "an empty reply"
    assert (fault("fisher", {}, {}) or "") == "an empty reply"
    assert (fault("fisher", {}, {"fisher": torch.zeros(9)}) or "").startswith("samples: expected a number of samples")
    assert fault("fisher", {}, {"samples": 0}) is None
    for op in ("masked_features", "class_sums", "count_held_out"):
        assert fault(op, {}, {}) is None


IDS, TWO = torch.tensor([1, 4], dtype=torch.int32), torch.zeros(2, 3)
SUMS, FIVE = torch.zeros(5, 3), torch.ones(5, dtype=torch.long)


@pytest.mark.parametrize(
    ("op", "reply", "named"),
    [
        ("fisher", {"fisher": torch.zeros(9)}, None),
        ("fisher", {"fisher": torch.zeros(6)}, "fisher: expected [9], got float32 [6]"),
        ("fisher", {"fisher": 1.0}, "fisher: expected [9], got float"),
        ("train", {"control_change": torch.zeros(())}, "control_change: expected [9], got float32 []"),
        ("class_sums", {"class_sums": SUMS, "class_counts": FIVE}, None),
        (
            "class_sums",
            {"class_sums": SUMS[:4], "class_counts": FIVE},
            "class_sums: expected [5, d], got float32 [4, 3]",
        ),
        ("leverage", {"counts": torch.zeros(3, dtype=torch.int32)}, "counts: expected [2], got int32 [3]"),
        ("train", {"fedfsa.classes": IDS, "fedfsa.means": TWO}, None),
        ("train", {"fedfsa.classes": IDS, "fedfsa.means": TWO[:1]}, "fedfsa.means: not as many rows as fedfsa.classes"),
        ("train", {"fedfsa.classes": IDS + 1, "fedfsa.means": TWO}, "fedfsa.classes: a class that is not among the 5"),
        ("train", {"clip2fl.classes": IDS - 2}, "clip2fl.classes: a class that is not among the 5"),
        ("train", {"clip2fl.classes": 3}, "clip2fl.classes: expected [h], got int"),
        ("train", {"clip2fl.classes": TWO[:, 0]}, "clip2fl.classes: expected whole numbers, got float32 [2]"),
        ("train", {"clip2fl.bias_gradients": torch.zeros(2, 4)}, "clip2fl.bias_gradients: expected [h, 5]"),
        ("masked_features", {"features": torch.zeros(7, 3)}, None),
    ],
)
def test_a_form_that_was_not_declared_is_named(op: str, reply: Payload, named: str | None) -> None:
    found = fault(op, REQUEST, {**GOOD, **reply})
    assert (found or "").startswith(named or "")
    assert (found is None) == (named is None)


@pytest.mark.parametrize(
    ("op", "reply", "named"),
    [
        ("train", {"prior_head": -0.1}, "prior_head: expected values from 0 to 1, got -0.1"),
        ("train", {"prior_head": 1.5}, "prior_head: expected values from 0 to 1, got 1.5"),
        ("train", {"prior_head": -1e-7}, None),  # rounding
        ("train", {"num_tail": -1}, "num_tail: expected values of at least 0, got -1"),
        ("train", {"num_tail": 2.0}, "num_tail: expected whole numbers, got float"),
        ("train", {"num_tail": 0}, None),
        ("train", {"fedfsa.variances": TWO - 1}, "fedfsa.variances: expected values of at least 0, got -1"),
        ("fisher", {"fisher": torch.full((9,), -1.0)}, "fisher: expected values of at least 0, got -1"),
        ("leverage", {"mass": -2.0}, "mass: expected values of at least 0, got -2"),
        ("class_sums", {"class_counts": -FIVE}, "class_counts: expected values of at least 0, got -1"),
        ("count_held_out", {"held_out": torch.tensor([1, -3])}, "held_out: expected values of at least 0, got -3"),
        ("train", {"mass": 1.0}, "mass: not among what this method sends"),  # it belongs to another operation
    ],
)
def test_a_value_outside_its_declared_range_is_refused(op: str, reply: Payload, named: str | None) -> None:
    found = fault(op, REQUEST, {**GOOD, **reply})
    assert found == named


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"generation": 3, "exemplars": 0, "seconds": 0.5}, None),
        ({"failed": "no"}, None),
        ({"generation": 3}, "exemplars"),
        ({"generation": "x", "exemplars": 0}, "generation"),
        ({"generation": 10**400, "exemplars": 0}, "generation"),
        ({"generation": 3, "exemplars": True}, "exemplars"),
        ({"seconds": "x"}, "seconds"),
        ({"seconds": math.nan}, "seconds"),
    ],
)
def test_words_beside_a_reply_are_checked(header: Header, named: str | None) -> None:
    fault = fault_of_header(header)
    assert (fault or "").startswith(named or "")
    assert (fault is None) == (named is None)


def test_seconds_are_counted_only_if_they_are_numbers() -> None:
    given: list[Header] = [{"seconds": 1}, {"seconds": "x"}, {"seconds": math.inf}, {}]
    assert [seconds_of(header) for header in given] == [1.0, 0.0, 0.0, 0.0]
