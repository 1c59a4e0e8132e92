"""What a client with a key can send to do harm: each entry of a reply spoilt in every way, its words and its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fedfeat.core.payload import Payload
from fedfeat.engines.flower.codec import Packed, pack, unpack
from fedfeat.engines.flower.messages import Header

FORGED = "ok\n2026-01-01 00:00:00 WARNING all is well\r\x1b[2J\u202e"
NUMBERS = ("prior_head", "prior_tail", "num_tail", "loss.ce", "loss.gsa", "loss.first_epoch")
BAD_NUMBERS: dict[str, Any] = {
    "NaN": float("nan"),
    "infinite": float("inf"),
    "1e308": 1e308,
    "-1e308": -1e308,
    "1e10": 1e10,
    "a whole number of 400 digits": 10**400,
    "text": "much",
    "a tensor": torch.zeros(3),
}
BAD_COUNTS: dict[str, Any] = {"2^53": 2**53, "-1": -1, "a fraction": 1.5, "true": True, "text": "many"}


@dataclass(frozen=True)
class Spoiler:
    """One way to spoil a reply, and what the server's sentence about it must name."""

    spoil: Callable[[Header, Packed], tuple[Header, Packed]]
    named: str


def changed(named: str, change: Callable[[Payload], Payload]) -> Spoiler:
    """Change the entries of a reply."""
    return Spoiler(lambda header, answer: (header, pack(change(unpack(answer)))), named)


def entry(name: str, value: Any) -> Spoiler:
    return changed(name, lambda reply: {**reply, name: value})


def without(name: str) -> Spoiler:
    return changed(name, lambda reply: {k: v for k, v in reply.items() if k != name})


def weights(change: Callable[[torch.Tensor], Any]) -> Spoiler:
    return changed("weights", lambda reply: {**reply, "weights": change(torch.as_tensor(reply["weights"]))})


def masses(value: float) -> Spoiler:
    return changed("masses", lambda reply: {**reply, "masses": one_bad(torch.as_tensor(reply["masses"]), value)})


def words(named: str, **said: Any) -> Spoiler:
    return Spoiler(lambda header, answer: ({**header, **said}, answer), named)


def form(manifest: str | None = None, cut: int = 0, more: bytes = b"") -> Spoiler:
    """Change how a reply is written down, not what it says."""

    def spoil(header: Header, answer: Packed) -> tuple[Header, Packed]:
        buffers = {k: v[: len(v) - cut] + more for k, v in answer.buffers.items()}
        return header, Packed(answer.manifest if manifest is None else manifest, buffers)

    return Spoiler(spoil, "")


def one_bad(tensor: torch.Tensor, value: float) -> torch.Tensor:
    spoilt = tensor.clone()
    spoilt[0] = value
    return spoilt


def _of_every_round() -> Iterator[tuple[str, Spoiler]]:
    yield "weights: NaN", weights(lambda w: one_bad(w, float("nan")))
    yield "weights: infinite", weights(lambda w: one_bad(w, float("inf")))
    for size in (3e38, 1e9, 1e6, 1e4):
        yield f"weights: {size:g} added", weights(lambda w, size=size: w + size)
    yield "weights: one 3e38", weights(lambda w: one_bad(w, 3e38))
    yield "weights: one number fewer", weights(lambda w: w[:-1])
    yield "weights: one number more", weights(lambda w: torch.cat([w, w[:1]]))
    yield "weights: two dimensions", weights(lambda w: w[None])
    yield "weights: none", weights(lambda w: w[:0])
    yield "weights: float64", weights(lambda w: w.double())
    yield "weights: float16", weights(lambda w: w.half())
    yield "weights: whole numbers", weights(lambda w: w.int())
    yield "weights: text", weights(lambda w: "all of them")
    yield "weights: missing", without("weights")
    for how, value in BAD_COUNTS.items():
        yield f"samples: {how}", entry("samples", value)
    yield "samples: NaN", entry("samples", float("nan"))
    yield "samples: missing", without("samples")
    for how, value in BAD_NUMBERS.items():
        yield f"loss.first_epoch: {how}", entry("loss.first_epoch", value)
    yield "loss.first_epoch: missing", without("loss.first_epoch")
    yield "an entry too many", entry("more", 1.0)
    yield "a tensor too many", entry("more", torch.zeros(1000))
    yield "1,000 entries too many", changed("more", lambda r: {**r, **{f"more{k}": 1.0 for k in range(1000)}})
    yield "an entry with a forged log line as its name", entry(FORGED, 1.0)
    yield "an entry with a name of 1 MB", entry("x" * 10**6, 1.0)
    for name, values in {"generation": (-1, 2**60, "x", None, 1.5), "exemplars": (-1, 2**60, "x")}.items():
        for value in values:
            yield f"words beside it: {name} {value}", words(name, **{name: value})
    for value in (-1.0, "soon", float("nan"), 1e300):
        yield f"words beside it: {value} seconds", words("seconds", seconds=value)
    yield "a failure with a forged log line", words("ok", failed=FORGED)
    yield "a failure of 3 MB", words("x", failed="x" * 3_000_000)
    for how, manifest in {
        "not JSON": "[[",
        "no list": "{}",
        "text": '"x"',
        "nested 100,000 times": "[" * 10**5 + "]" * 10**5,
        "an unknown type": json.dumps([["weights", "object", [2]]]),
        "2^62 numbers": json.dumps([["weights", "float32", [2**62]]]),
        "a negative size": json.dumps([["weights", "float32", [-5]]]),
        "an entry of 2 parts": json.dumps([["weights", "float32"]]),
    }.items():
        yield f"its form: {how}", form(manifest)
    yield "its form: cut off", form(cut=4)
    yield "its form: more bytes than it says", form(more=b"\0" * 64)


def _of_later_tasks() -> Iterator[tuple[str, Spoiler]]:
    """Entries that a client sends once it has exemplars."""
    for name in NUMBERS[:-1]:
        for how, value in BAD_NUMBERS.items():
            yield f"{name}: {how}", entry(name, value)
    for name in NUMBERS[:2]:
        yield f"{name}: missing", without(name)
    for how, value in BAD_COUNTS.items():
        yield f"num_tail: {how}", entry("num_tail", value)
    yield "num_tail: missing", without("num_tail")


EVERY_ROUND = dict(_of_every_round())
LATER_TASKS = dict(_of_later_tasks())
MASSES = {f"masses: {mass:g}": masses(mass) for mass in (-100.0, -1e30)}
SPOILERS = {**EVERY_ROUND, **LATER_TASKS, **MASSES}
