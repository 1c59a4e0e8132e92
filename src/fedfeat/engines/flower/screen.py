"""Looks at replies before they are used: a reply that cannot be averaged is a failure of its client, not of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.core.payload import Payload, Value
from fedfeat.engines.flower.messages import Header
from fedfeat.federation.evaluation import ENERGIES, EVALUATE, fault_of_tables

Signature = tuple[Any, ...]
NOTHING = "NoneType"  # the kind of an entry that is missing
LARGEST = 2**53  # whole numbers up to here survive as floats

SAME_SHAPE = frozenset({"right", "held_out", ENERGIES})  # others' rows may count a client's samples or classes
NEVER_EMPTY = frozenset({"leverage"})  # operations that are asked only of clients that have something to say
COUNTED = frozenset({"train", "fisher"})  # replies that say how many samples are behind them
ROWS = {  # entries whose number of rows the server knows
    ("train", "control_change"): "trained",
    ("fisher", "fisher"): "trained",
    ("class_sums", "class_sums"): "classes",
    ("class_sums", "class_counts"): "classes",
    ("leverage", "counts"): "new_classes",
    ("leverage", "masses"): "new_classes",
}
IDS = frozenset({"fedfsa.classes", "clip2fl.classes"})  # the class of each row of the entries with the same prefix


class Sizes(NamedTuple):
    """What the server knows of the model that it asked about."""

    trained: int  # numbers that are trained
    classes: int  # seen so far
    new_classes: int  # of the current task


def fault_of(op: str, request: Payload, reply: Payload, allowed: frozenset[str]) -> str | None:
    """Return what is wrong with a reply by itself; None if it is fit for use.

    :param allowed: entries that the method declares besides weights, number of samples and losses.
    """
    for name, value in reply.items():
        if name not in allowed and name not in ("weights", "samples") and not name.startswith("loss."):
            return f"{name}: not among what this method sends"
        if name.startswith("loss.") and not isinstance(value, int | float):
            return f"{name}: expected a number, got {_told(value)}"
        if not is_finite(value):
            return f"{name}: not a finite number, or a tensor with such"
    if op in NEVER_EMPTY and not reply:
        return "an empty reply"
    if op == EVALUATE:
        return fault_of_tables(request, reply)
    if op in COUNTED and not is_count(samples := reply.get("samples")):
        return f"samples: expected a number of samples, got {samples!r:.40}"
    if op != "train" or reply["samples"] == 0:
        return None
    wanted, came = request["weights"], reply.get("weights")
    if signature(came) != signature(wanted) or _shape(came) != _shape(wanted):
        return f"weights: expected {_told(wanted)}, got {_told(came)}"
    return None


def fault_of_header(header: Header) -> str | None:
    """Return what is wrong with the words that come with a reply or a hello."""
    state = ("generation", "exemplars")
    for name in state if any(name in header for name in state) else ():
        if not is_count(header.get(name)):
            return f"{name}: expected a whole number, got {header.get(name)!r:.40}"
    if not _is_time(header.get("seconds", 0.0)):
        return f"seconds: expected a number, got {header['seconds']!r:.40}"
    return None


def fault_of_rows(op: str, reply: Payload, sizes: Sizes) -> str | None:
    """Return which entry has another number of rows than the server can use, or names a class that nobody has seen."""
    for name, value in reply.items():
        wanted = ROWS.get((op, name))
        if wanted is not None and _rows(value) != getattr(sizes, wanted):
            return f"{name}: expected {getattr(sizes, wanted)} rows, got {_told(value)}"
        if name in IDS and (fault := _fault_of_classes(name, reply, sizes.classes)) is not None:
            return fault
    return None


def odd_ones(replies: Mapping[int, Payload]) -> dict[int, str]:
    """Return clients whose entries have another dtype or form than those of most clients, and what is odd.

    The first dimension may differ where it counts samples or classes, and a loss may be missing (its term may be
    active for some clients only). Replies without samples are not compared.
    """
    faults: dict[int, str] = {}
    full = {k: r for k, r in replies.items() if r.get("samples") != 0 and r}
    for name in sorted({name for reply in full.values() for name in reply}):
        form = whole_signature if name in SAME_SHAPE else signature
        seen = {k: form(r.get(name)) for k, r in full.items() if name in r or not _may_be_missing(name)}
        counts = Counter(seen.values())
        usual = max(counts, key=lambda kind: (counts[kind], kind[0] != NOTHING))
        for client, found in seen.items():
            if found != usual:
                faults.setdefault(client, f"{name}: {_told(full[client].get(name))} is unlike that of other clients")
    return faults


def is_finite(value: Value) -> bool:
    """Tell whether a value has neither NaN nor infinities."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    try:
        return isinstance(value, str) or math.isfinite(value)
    except OverflowError:
        return False  # a whole number that no float can hold


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number from zero to what a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def seconds_of(header: Header) -> float:
    """Return how long a client says it worked; nothing if it does not say it in numbers."""
    seconds = header.get("seconds", 0.0)
    return float(seconds) if _is_time(seconds) else 0.0


def signature(value: Value | None) -> Signature:
    """Return what entries of the same name have in common: kind, dtype, and the shape but for its first dimension."""
    if isinstance(value, Tensor):
        return "tensor", value.dtype, value.dim(), tuple(value.shape[1:])
    return ("number",) if isinstance(value, int | float) else (type(value).__name__,)


def whole_signature(value: Value | None) -> Signature:
    """Return kind, dtype and the whole shape."""
    return (*signature(value), _shape(value))


def _fault_of_classes(name: str, reply: Payload, classes: int) -> str | None:
    ids, prefix = reply[name], name.removesuffix("classes")
    if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.is_floating_point():
        return f"{name}: expected ids of classes, got {_told(ids)}"
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < classes:
        return f"{name}: a class that is not among the {classes} seen ones"
    others = [other for other in reply if other.startswith(prefix) and _rows(reply[other]) != len(ids)]
    return f"{others[0]}: not as many rows as {name}" if others else None


def _may_be_missing(name: str) -> bool:
    return name.startswith("loss.") and name != "loss.first_epoch"


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and is_finite(value) and value >= 0


def _rows(value: Value) -> int | None:
    return len(value) if isinstance(value, Tensor) and value.dim() else None


def _shape(value: Value | None) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _told(value: Value | None) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "nothing" if value is None else type(value).__name__
