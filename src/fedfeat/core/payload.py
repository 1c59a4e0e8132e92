"""What crosses between server and client: a flat dict of tensors and numbers, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Value = Tensor | int | float | str
Payload = dict[str, Value]
State = dict[str, Value]  # what a client keeps between rounds, of the same form

SHARED = "shared."  # prefix of entries that are delivered once and kept by the client
NUMBER_BYTES = 4  # a lone number is counted as one float32, whatever carries it


def value_bytes(value: Value) -> int:
    """Return the size of one value on the wire, without the framing of whatever carries it."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return len(value.encode()) if isinstance(value, str) else NUMBER_BYTES


def as_tensor(value: Value) -> Tensor:
    """Return a tensor as it is, and a number as a tensor in double precision."""
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


def moved(payload: Mapping[str, Value], device: torch.device | str) -> Payload:
    """Return a payload with its tensors on a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in payload.items()}


def copied(payload: Mapping[str, Value]) -> Payload:
    """Return a payload with tensors of its own."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in payload.items()}


def tensor_of(payload: Mapping[str, Value], key: str) -> Tensor:
    """Return a tensor entry; a missing or wrong entry is a programming error and named as such."""
    value = payload[key]
    if not isinstance(value, Tensor):
        raise TypeError(f"payload entry {key!r} should be a tensor, got {type(value).__name__}")
    return value


def number_of(payload: Mapping[str, Value], key: str) -> float:
    """Return a numeric entry as a float."""
    value = payload[key]
    if isinstance(value, Tensor | str):
        raise TypeError(f"payload entry {key!r} should be a number, got {type(value).__name__}")
    return float(value)
