"""Looks at replies before they are used: a reply that cannot be averaged is a failure of its client, not of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfeat.federation.evaluation import EVALUATE, fault_of_tables
from fedfeat.federation.payload import Payload, Value

Signature = tuple[Any, ...]


def fault_of(op: str, request: Payload, reply: Payload, allowed: frozenset[str]) -> str | None:
    """Return what is wrong with a reply by itself; None if it is fit for use.

    :param allowed: entries that the method declares besides weights, number of samples and losses.
    """
    for name, value in reply.items():
        if name not in allowed and name not in ("weights", "samples") and not name.startswith("loss."):
            return f"{name}: not among what this method sends"
        if not is_finite(value):
            return f"{name}: not a finite number, or a tensor with such"
    if op == EVALUATE:
        return fault_of_tables(request, reply)
    if op != "train":
        return None
    samples = reply.get("samples")
    if not isinstance(samples, int) or samples < 0:
        return f"samples: expected a number of samples, got {samples!r}"
    if samples == 0:
        return None
    wanted, came = request["weights"], reply.get("weights")
    if signature(came) != signature(wanted) or _shape(came) != _shape(wanted):
        return f"weights: expected {_told(wanted)}, got {_told(came)}"
    return None


def odd_ones(replies: Mapping[int, Payload]) -> dict[int, str]:
    """Return clients whose entries have another dtype or form than those of most clients, and what is odd.

    The first dimension may differ (it often counts samples or classes), and a loss may be missing (its term may be
    active for some clients only). Replies without samples are not compared.
    """
    faults: dict[int, str] = {}
    full = {k: r for k, r in replies.items() if r.get("samples") != 0 and r}
    for name in sorted({name for reply in full.values() for name in reply}):
        seen = {k: signature(r.get(name)) for k, r in full.items() if name in r or not name.startswith("loss.")}
        counts = Counter(seen.values())
        usual = max(counts, key=lambda form: (counts[form], form != signature(None)))
        for client, found in seen.items():
            if found != usual:
                faults.setdefault(client, f"{name}: {_told(full[client].get(name))} is unlike that of other clients")
    return faults


def is_finite(value: Value) -> bool:
    """Tell whether a value has neither NaN nor infinities."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    return isinstance(value, str) or math.isfinite(value)


def signature(value: Value | None) -> Signature:
    """Return what entries of the same name have in common: kind, dtype, and the shape but for its first dimension."""
    if isinstance(value, Tensor):
        return "tensor", value.dtype, value.dim(), tuple(value.shape[1:])
    return ("number",) if isinstance(value, int | float) else (type(value).__name__,)


def _shape(value: Value | None) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _told(value: Value | None) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "nothing" if value is None else type(value).__name__
