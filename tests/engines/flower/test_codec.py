"""Payloads survive the way through bytes exactly, and damaged ones are refused."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.engines.flower.codec import DTYPES, CodecError, Packed, decode, encode, pack, unpack


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    seed = draw(st.integers(0, 2**31))
    raw = torch.randint(0, 256, (*shape, DTYPES[dtype].itemsize), generator=torch.Generator().manual_seed(seed))
    raw = raw % 2 if dtype == "bool" else raw
    tensor = raw.to(torch.uint8).view(DTYPES[dtype]).reshape(shape)  # every bit pattern, NaN and Inf included
    layout = draw(st.sampled_from(["as it is", "transposed", "strided", "expanded"]))
    if layout == "transposed" and tensor.ndim > 1:
        return tensor.transpose(0, -1)
    if layout == "strided" and tensor.ndim > 0:
        return tensor[::2]
    if layout == "expanded":
        return tensor.unsqueeze(0).expand(2, *tensor.shape)
    return tensor


values = st.one_of(tensors(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=20))
payloads = st.dictionaries(st.text(min_size=1, max_size=12), values, max_size=6)


def same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and a == b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.numel() == 0 or torch.equal(*(torch.cat([x.reshape(-1)]).view(torch.uint8) for x in (a, b)))


@settings(max_examples=120, deadline=None)
@given(payloads)
def test_every_payload_comes_back_as_it_was(payload: dict[str, Any]) -> None:
    for back in (unpack(pack(payload)), unpack(decode(encode(pack(payload))))):
        assert list(back) == list(payload)
        assert all(same(payload[k], back[k]) for k in payload)


def test_tensors_of_a_dtype_travel_as_one_buffer() -> None:
    payload = {f"layer{i}": torch.full((3, i), float(i)) for i in range(50)} | {"steps": torch.arange(3)}
    packed = pack(payload)
    assert {name: len(data) for name, data in packed.buffers.items()} == {
        "float32": 4 * 3 * sum(range(50)),
        "int64": 24,
    }


def test_what_comes_back_may_be_written_to() -> None:
    back = unpack(pack({"a": torch.zeros(3)}))["a"]
    assert isinstance(back, torch.Tensor)
    back.add_(1)
    assert back.tolist() == [1, 1, 1]


def test_nan_and_infinite_numbers_come_back() -> None:
    back = unpack(pack({"a": math.nan, "b": -math.inf}))
    assert math.isnan(back["a"])  # type: ignore[arg-type]
    assert back["b"] == -math.inf


@pytest.mark.parametrize(
    "manifest",
    [
        "nonsense",
        "[1]",
        json.dumps([["a", "float32", [3]]]),  # needs more than there is
        json.dumps([["a", "float32", [1]]]),  # leaves something over
        json.dumps([["a", "float32", [-2]]]),
        json.dumps([["a", "float32", [2.0]]]),
        json.dumps([["a", "float64", [1]]]),  # a dtype without a buffer
        json.dumps([["a", "float32", [2]], ["a", None, 1]]),  # a name twice
        json.dumps([["a", "float32", [2]], ["b", None, [1]]]),
        json.dumps([["a", "float32", [2, 1 << 62, 1 << 62]]]),
        json.dumps([["a", "float32", [2]], ["b", "float32", [0, 1 << 70]]]),
        json.dumps([["a", "float32", [2]], [5, None, 1]]),
        "[" * 200_000 + "]" * 200_000,
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(manifest: str) -> None:
    with pytest.raises(CodecError):
        unpack(Packed(manifest, {"float32": bytes(8)}))


def test_an_unknown_dtype_or_kind_of_value_is_refused() -> None:
    with pytest.raises(CodecError, match="complex64"):
        pack({"a": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(CodecError, match="list"):
        pack({"a": [1]})  # type: ignore[dict-item]
    with pytest.raises(CodecError):
        unpack(Packed("[]", {"object": b"xxxx"}))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_file_is_refused_or_read_but_never_breaks(place: int, byte: int) -> None:
    data = bytearray(encode(pack({"w": torch.arange(10.0), "n": 3, "s": "text"})))
    data[place % len(data)] = byte
    with contextlib.suppress(CodecError):
        unpack(decode(bytes(data)))
    with pytest.raises(CodecError):
        decode(bytes(data[: place % len(data)]))
