"""Payloads as bytes, without pickle: one flat buffer per dtype, and a manifest that says what lies where.

Many small tensors cost far more on the way than the same bytes in one piece, so tensors of a dtype are laid end to
end. The manifest is JSON: names in order, shapes, numbers and strings. The same form serves the wire and the disk.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfeat.core.errors import FedfeatError
from fedfeat.core.payload import Payload, Value

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAGIC = b"fedfeat1"
# What damaged bytes raise; a RecursionError, of brackets in brackets, is a RuntimeError.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError)


class CodecError(FedfeatError):
    """Bytes that are not a payload, or a payload that has no bytes."""


@dataclass(frozen=True)
class Packed:
    """A payload taken apart: a JSON manifest and the bytes of each dtype."""

    manifest: str
    buffers: dict[str, bytes]

    def digest(self) -> str:
        """Return the SHA-256 of everything."""
        digest = hashlib.sha256(self.manifest.encode())
        for name in sorted(self.buffers):
            digest.update(self.buffers[name])
        return digest.hexdigest()


def pack(payload: Mapping[str, Value]) -> Packed:
    """Take a payload apart; tensors may lie anywhere and in any layout."""
    entries: list[list[Any]] = []
    tensors: dict[str, list[Tensor]] = {}
    for name, value in payload.items():
        if isinstance(value, Tensor):
            if value.dtype not in NAMES:
                raise CodecError(f"payload entry {name!r}: tensors of {value.dtype} cannot be sent; convert it first")
            tensors.setdefault(NAMES[value.dtype], []).append(value)
            entries.append([name, NAMES[value.dtype], list(value.shape)])
        elif isinstance(value, str | int | float):
            entries.append([name, None, value])
        else:
            raise CodecError(f"payload entry {name!r}: expected a tensor, number or string, got {type(value).__name__}")
    return Packed(json.dumps(entries), {name: _bytes(values) for name, values in tensors.items()})


def unpack(packed: Packed) -> Payload:
    """Put a payload together again; what does not fit together is refused."""
    try:
        entries = json.loads(packed.manifest)
        buffers = {name: _tensor(data, DTYPES[name]) for name, data in packed.buffers.items()}
        places = dict.fromkeys(buffers, 0)
        payload: Payload = {}
        for name, kind, value in entries:
            _checked(name, isinstance(name, str), "a name")
            if kind is None:
                payload[name] = _checked(value, isinstance(value, int | float | str), "a number or a string")
                continue
            shape = [_checked(n, type(n) is int and n >= 0, "a size") for n in value]
            start, count = places[kind], math.prod(shape)
            if start + count > len(buffers[kind]):
                raise ValueError(f"entry {name!r} needs more {kind} than there is")
            payload[name] = buffers[kind][start : start + count].view(shape)
            places[kind] = start + count
        left = [kind for kind, buffer in buffers.items() if places[kind] != len(buffer)]
        if left or len(payload) != len(entries):
            raise ValueError(f"names occur twice, or {', '.join(left)} is left over")
    except UNREADABLE as error:
        raise CodecError(f"a message cannot be read: {error}") from error
    return payload


def encode(packed: Packed) -> bytes:
    """Return a payload as one piece, for a file."""
    head = json.dumps([packed.manifest, {name: len(data) for name, data in packed.buffers.items()}]).encode()
    return b"".join([MAGIC, len(head).to_bytes(8, "little"), head, *packed.buffers.values()])


def decode(data: bytes) -> Packed:
    """Read what ``encode`` wrote."""
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        raise CodecError("a file is not one of this program's payloads")
    place = start + int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        manifest, sizes = json.loads(data[start:place])
        buffers = {}
        for name, size in sizes.items():
            buffers[name] = data[place : place + size]
            place += size
    except UNREADABLE as error:
        raise CodecError(f"a payload cannot be read: {error}") from error
    if place != len(data):
        raise CodecError(f"a payload should have {place} bytes and has {len(data)}")
    return Packed(manifest, buffers)


def _bytes(tensors: Iterable[Tensor]) -> bytes:
    flat = [t.detach().reshape(-1).cpu() for t in tensors]
    # A tensor of one number may be contiguous with any stride, and then not be seen as bytes.
    joined = flat[0] if len(flat) == 1 and flat[0].stride() == (1,) else torch.cat(flat)
    return joined.view(torch.uint8).numpy().tobytes() if joined.numel() else b""


def _tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    # A copy: what is made of it may be written to.
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _checked(value: Any, valid: bool, what: str) -> Any:
    if not valid:
        raise ValueError(f"{value!r} is not {what}")
    return value
