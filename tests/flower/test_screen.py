"""Replies are looked at one by one and beside each other."""

from __future__ import annotations

import math

import pytest
import torch

from fedfeat.federation.payload import Payload
from fedfeat.flower.screen import fault_of, is_finite, odd_ones

W = torch.zeros(4)
REQUEST: Payload = {"weights": W}
GOOD: Payload = {"weights": W, "samples": 3, "loss.ce": 0.5}


def test_a_sound_reply_passes() -> None:
    assert fault_of("train", REQUEST, GOOD, frozenset()) is None
    assert fault_of("train", REQUEST, {"samples": 0}, frozenset()) is None
    assert fault_of("train", REQUEST, {**GOOD, "prior": 1.0}, frozenset({"prior"})) is None
    assert fault_of("keep", {"quota": 3}, {}, frozenset()) is None


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
    ],
)
def test_an_unfit_reply_is_named(reply: Payload, named: str) -> None:
    fault = fault_of("train", REQUEST, reply, frozenset())
    assert fault is not None
    assert fault.startswith(named)


def test_whole_numbers_are_finite_whatever_they_are() -> None:
    assert is_finite(torch.tensor([2**62]))
    assert is_finite("nan")
    assert not is_finite(torch.tensor([1.0, math.inf], dtype=torch.bfloat16))


def test_the_odd_one_among_replies_is_found() -> None:
    usual: Payload = {"samples": 2, "features": torch.zeros(5, 3), "mass": 1.0}
    replies = {0: usual, 1: {**usual, "features": torch.zeros(2, 3)}, 2: {**usual, "features": torch.zeros(5, 4)}}
    assert list(odd_ones(replies)) == [2], "the first dimension may differ, others may not"
    replies = {0: usual, 1: {**usual, "mass": torch.zeros(1)}, 2: usual}
    assert list(odd_ones(replies)) == [1]
    replies = {0: {k: v for k, v in usual.items() if k != "mass"}, 1: usual, 2: {}, 3: {"samples": 0}}
    assert odd_ones(replies) == {0: "mass: nothing is unlike that of other clients"}


def test_a_loss_may_be_missing() -> None:
    replies: dict[int, Payload] = {0: {**GOOD, "loss.kd": 1.0}, 1: GOOD, 2: GOOD}
    assert odd_ones(replies) == {}
