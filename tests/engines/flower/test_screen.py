"""Replies are looked at one by one and beside each other."""

from __future__ import annotations

import math

import pytest
import torch

from fedfeat.algorithm.sent import Sent, in_words
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.messages import Header
from fedfeat.federation.evaluation import SENDS
from fedfeat.federation.screen import declared_losses, fault_of, fault_of_header, is_finite, odd_ones, seconds_of
from fedfeat.methods import PARTS, compose

W = torch.zeros(4)
REQUEST: Payload = {"weights": W}
GOOD: Payload = {"weights": W, "samples": 3, "loss.ce": 0.5, "loss.first_epoch": 0.6}
SIZES = {"task": 1, "trained": 9, "C": 5, "N": 2, "d": 3, "n": 40, "G": 2, "D": 3}
LOSSES = declared_losses(compose("finetune", {}))
DECLARED = {s.name: s for part in PARTS.values() for s in part.sends if s.up} | SENDS


def fault(op: str, request: Payload, reply: Payload, sends: dict[str, Sent] | None = None) -> str | None:
    """Screen a reply of a method that sends what is in it, and what always has to be there."""
    if sends is None:
        sends = {name: sent for name, sent in DECLARED.items() if name in reply or not reply}
    return fault_of(op, request, reply, {**LOSSES, **sends}, SIZES)


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
        ({**GOOD, "loss.ce": "abc"}, "loss.ce: expected a number, got str"),
        ({**GOOD, "loss.ce": W}, "loss.ce: expected a number, got float32 [4]"),
        ({**GOOD, "loss.ce": 1e308}, "loss.ce: expected values of at most 1e+09, got 1e+308"),
        ({**GOOD, "loss.ce": -1e308}, "loss.ce: expected values of at most 1e+09, got 1e+308"),
        ({**GOOD, "loss.extra": 1.0}, "loss.extra: not among what this method sends"),
        ({k: v for k, v in GOOD.items() if k != "loss.first_epoch"}, "loss.first_epoch: missing"),
        ({**GOOD, "weights": W + 3e38}, "weights: expected values of at most 1e+09, got 3e+38"),
        ({**GOOD, "samples": 10**300}, "samples"),
        ({**GOOD, "samples": 2**53}, "samples: expected a number of samples of at most 40, got 9007199254740992"),
    ],
)
def test_an_unfit_reply_is_named(reply: Payload, named: str) -> None:
    assert (fault("train", REQUEST, reply, {}) or "").startswith(named)


def test_whole_numbers_are_finite_whatever_they_are() -> None:
    assert is_finite(torch.tensor([2**62]))
    assert is_finite("nan")
    assert not is_finite(torch.tensor([1.0, math.inf], dtype=torch.bfloat16))


def test_the_odd_one_is_found_among_entries_that_are_declared_in_words() -> None:
    words = {"mine": in_words("of a plugin", "mine")}
    usual: Payload = {"samples": 2, "mine": torch.zeros(5, 3)}
    replies = {0: usual, 1: {**usual, "mine": torch.zeros(2, 3)}, 2: {**usual, "mine": torch.zeros(5, 4)}}
    assert list(odd_ones(replies, words)) == [2], "the first dimension may differ, others may not"
    replies = {0: {"samples": 2}, 1: usual, 2: {}, 3: {"samples": 0}, 4: usual}
    assert odd_ones(replies, words) == {0: "mine: nothing is unlike that of other clients"}


@pytest.mark.parametrize(("method", "task"), [("fedcbdr+feat", 0), ("fedcbdr+feat", 1), ("fedcbdr+scaffold", 1)])
def test_with_two_clients_no_entry_is_decided_by_a_vote(method: str, task: int) -> None:
    """One of two must not be able to evict the other by an entry too many, one too few, or another form."""
    composed = compose(method, {})
    sends = {**composed.sends, **declared_losses(composed)}
    honest: Payload = {"weights": W, "samples": 3, "loss.first_epoch": 0.6}
    honest |= {"prior_head": 0.1, "prior_tail": 0.1, "num_tail": 3} if "feat" in method and task else {}
    honest |= {"control_change": torch.zeros(9)} if "scaffold" in method else {}
    entry = "control_change" if "scaffold" in method else "prior_head"
    spoilt: list[Payload] = [{**honest, entry: torch.zeros(9, dtype=torch.float64)}]
    spoilt += [{k: v for k, v in honest.items() if k != entry}] if entry in honest else [{**honest, entry: 0.1}]
    sizes = {**SIZES, "task": task}
    assert fault_of("train", REQUEST, honest, sends, sizes) is None
    for reply in spoilt:
        assert (fault_of("train", REQUEST, reply, sends, sizes) or "").startswith(entry)
        assert odd_ones({0: reply, 1: honest}, sends) == {}


def test_an_operation_that_always_has_an_answer_may_not_be_answered_with_nothing() -> None:
    assert fault("leverage", {}, {}) == "an empty reply"
    assert (fault("fisher", {}, {}) or "") == "an empty reply"
    both = {name: DECLARED[name] for name in ("fisher", "samples")}
    alone = fault("fisher", {}, {"fisher": torch.zeros(9)}, both)
    assert (alone or "").startswith("samples: expected a number of samples")
    assert fault("fisher", {}, {"samples": 0}) is None
    for op in ("masked_features", "class_sums", "count_held_out"):
        assert fault(op, {}, {}) is None


COMMON: dict[str, Payload] = {"train": GOOD, "fisher": {"samples": 3}}  # what an operation's reply has besides
ASKED: Payload = {**REQUEST, "clip2fl.weight": W}
IDS, TWO = torch.tensor([1, 4], dtype=torch.int32), torch.zeros(2, 3)
SUMS, FIVE = torch.zeros(5, 3), torch.ones(5, dtype=torch.long)


@pytest.mark.parametrize(
    ("op", "reply", "named"),
    [
        ("fisher", {"fisher": torch.zeros(9)}, None),
        ("fisher", {"fisher": torch.zeros(6)}, "fisher: expected 32 bits [9], got float32 [6]"),
        ("fisher", {"fisher": torch.zeros(9).double()}, "fisher: expected 32 bits [9], got float64 [9]"),
        ("fisher", {"fisher": torch.zeros(9).int()}, "fisher: expected fractions, got int32 [9]"),
        ("fisher", {"fisher": 1.0}, "fisher: expected 32 bits [9], got float"),
        ("train", {"control_change": torch.zeros(())}, "control_change: expected 32 bits [9], got float32 []"),
        ("count_held_out", {"held_out_loss": torch.zeros(2, 2, 2)}, "held_out_loss: expected 32 bits [2, 3, 2]"),
        ("masked_features", {"features": torch.zeros(41, 3)}, "features: expected 32 bits [n, 3], got float32 [41, 3]"),
        ("train", {"fedfsa.means": torch.zeros(6, 3)}, "fedfsa.means: expected 32 bits [h, 3], got float32 [6, 3]"),
        ("class_sums", {"class_sums": SUMS, "class_counts": FIVE}, None),
        (
            "class_sums",
            {"class_sums": SUMS[:4], "class_counts": FIVE},
            "class_sums: expected 32 bits [5, 3], got float32 [4, 3]",
        ),
        ("leverage", {"counts": torch.zeros(3, dtype=torch.int32)}, "counts: expected 32 bits [2], got int32 [3]"),
        ("train", {"fedfsa.classes": IDS, "fedfsa.means": TWO}, None),
        ("train", {"fedfsa.classes": IDS, "fedfsa.means": TWO[:1]}, "fedfsa.means: not as many rows as fedfsa.classes"),
        ("train", {"fedfsa.classes": IDS + 1, "fedfsa.means": TWO}, "fedfsa.classes: a class that is not among the 5"),
        ("train", {"clip2fl.classes": IDS - 2}, "clip2fl.classes: a class that is not among the 5"),
        ("train", {"clip2fl.classes": 3}, "clip2fl.classes: expected 32 bits [h], got int"),
        ("train", {"clip2fl.classes": TWO[:, 0]}, "clip2fl.classes: expected whole numbers, got float32 [2]"),
        ("train", {"clip2fl.bias_gradients": torch.zeros(2, 4)}, "clip2fl.bias_gradients: expected 32 bits [h, 5]"),
        ("masked_features", {"features": torch.zeros(7, 3)}, None),
    ],
)
def test_a_form_that_was_not_declared_is_named(op: str, reply: Payload, named: str | None) -> None:
    found = fault(op, ASKED, {**COMMON.get(op, {}), **reply})
    assert (found or "").startswith(named or "")
    assert (found is None) == (named is None)


@pytest.mark.parametrize(
    ("op", "reply", "named"),
    [
        ("train", {"prior_head": -0.1}, "prior_head: expected values of at least 0, got -0.1"),
        ("train", {"prior_head": 1.5}, "prior_head: expected values of at most 1, got 1.5"),
        ("train", {"prior_head": 1e308}, "prior_head: expected values of at most 1e+09, got 1e+308"),
        ("train", {"prior_head": -1e-7}, None),  # rounding
        ("train", {"num_tail": -1}, "num_tail: expected values of at least 0, got -1"),
        ("train", {"num_tail": 2.0}, "num_tail: expected whole numbers, got float"),
        ("train", {"num_tail": 0}, None),
        ("train", {"fedfsa.variances": TWO - 1}, "fedfsa.variances: expected values of at least 0, got -1"),
        ("fisher", {"fisher": torch.full((9,), -1.0)}, "fisher: expected values of at least 0, got -1"),
        ("leverage", {"mass": -2.0}, "mass: expected values of at least 0, got -2"),
        ("leverage", {"mass": 3.1}, "mass: expected values of at most 3, got 3.1"),
        ("leverage", {"masses": torch.tensor([-100.0, 1])}, "masses: expected values of at least 0, got -100"),
        ("leverage", {"masses": torch.tensor([-1e30, 1])}, "masses: expected values of at most 1e+09, got 1e+30"),
        ("train", {"num_tail": 2**53}, "num_tail: expected values of at most 1e+09, got 9.0072e+15"),
        ("class_sums", {"class_counts": FIVE * 41}, "class_counts: expected values of at most 40, got 41"),
        ("class_sums", {"class_counts": -FIVE}, "class_counts: expected values of at least 0, got -1"),
        (
            "count_held_out",
            {"held_out": torch.tensor([1, -3]).int()},
            "held_out: expected values of at least 0, got -3",
        ),
        ("train", {"mass": 1.0}, "mass: not among what this method sends"),  # it belongs to another operation
    ],
)
def test_a_value_outside_its_declared_range_is_refused(op: str, reply: Payload, named: str | None) -> None:
    found = fault(op, ASKED, {**COMMON.get(op, {}), **reply})
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
        ({"generation": 3, "exemplars": 2**60}, "exemplars"),
        ({"seconds": "x"}, "seconds"),
        ({"seconds": math.nan}, "seconds"),
        ({"seconds": 1e300}, "seconds"),
    ],
)
def test_words_beside_a_reply_are_checked(header: Header, named: str | None) -> None:
    fault = fault_of_header(header)
    assert (fault or "").startswith(named or "")
    assert (fault is None) == (named is None)


def test_seconds_are_counted_only_if_they_are_numbers() -> None:
    given: list[Header] = [{"seconds": 1}, {"seconds": "x"}, {"seconds": math.inf}, {}]
    assert [seconds_of(header) for header in given] == [1.0, 0.0, 0.0, 0.0]
