"""Looks at replies before they are used: a reply that cannot be averaged is a failure of its client, not of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedfeat.algorithm.engine import NOT_FINITE
from fedfeat.algorithm.method import Method
from fedfeat.algorithm.sent import LARGEST, ROUNDING, Sent
from fedfeat.core.payload import Payload, Value, as_tensor
from fedfeat.federation.average import FIRST_EPOCH
from fedfeat.federation.evaluation import EVALUATE, fault_of_tables

Signature = tuple[Any, ...]
Header = Mapping[str, Any]  # the words that come with a reply
Declared = Mapping[str, Sent]  # what a method sends besides weights and numbers of samples, by name
NOTHING = "NoneType"  # the kind of an entry that is missing
LARGEST_COUNT = 2**53  # whole numbers up to here survive as floats
TRAIN, WEIGHTS, COUNT, LOSS = "train", "weights", "samples", "loss."  # what every method's clients send
MOST = {"n": "n", "h": "C"}  # dimensions that differ between clients, and what limits them


def declared_losses(method: Method) -> dict[str, Sent]:
    """Return the losses that a client may report; a term may be active for some clients only."""
    terms = [term.name for term in (method.loss, *method.terms)] + [penalty.name for penalty in method.penalties]
    losses = {LOSS + name: Sent(f"up/{TRAIN}/{LOSS}{name}", optional=True, summed=True, by=COUNT) for name in terms}
    return {**losses, FIRST_EPOCH: Sent(f"up/{TRAIN}/{FIRST_EPOCH}", summed=True, by=COUNT)}


def fault_of(op: str, request: Payload, reply: Payload, sends: Declared, sizes: Mapping[str, int]) -> str | None:
    """Return what is wrong with a reply by itself; None if it is fit for use.

    :param sizes: what the server knows, see ``BaseEngine.reply_sizes``.
    """
    answers = {name: sent for name, sent in sends.items() if sent.op in (op, "*")}
    for name, value in reply.items():
        if name not in answers and name not in (WEIGHTS, COUNT):
            return f"{name}: not among what this method sends"
        if not is_finite(value):
            return f"{name}: {NOT_FINITE}"
        if name != COUNT and largest_of(value) > LARGEST:
            return f"{name}: expected values of at most {LARGEST:g}, got {largest_of(value):g}"
    if not reply and any(sent.always for sent in answers.values()):
        return "an empty reply"
    if op == EVALUATE:
        return fault_of_tables(request, reply) or _fault_of_values(answers, reply, sizes)
    if (op == TRAIN or COUNT in answers) and (not is_count(samples := reply.get(COUNT)) or samples > sizes["n"]):
        return f"{COUNT}: expected a number of samples of at most {sizes['n']}, got {samples!r:.40}"
    if op == TRAIN and reply[COUNT] != 0:
        wanted, came = request[WEIGHTS], reply.get(WEIGHTS)
        if (*signature(came), _shape(came)) != (*signature(wanted), _shape(wanted)):
            return f"{WEIGHTS}: expected {_told(wanted)}, got {_told(came)}"
    return _fault_of_presence(answers, request, reply, sizes) or _fault_of_values(answers, reply, sizes)


def _fault_of_presence(answers: Declared, request: Payload, reply: Payload, sizes: Mapping[str, int]) -> str | None:
    """Return which entry is missing, or should not be there yet; a client without a sample sends none."""
    for name, sent in answers.items() if reply and reply.get(COUNT) != 0 else ():
        expected = sent.expected(sizes["task"], request)
        if sent.shape is not None and expected != (name in reply) and not (expected and sent.optional):
            return f"{name}: {'missing' if expected else 'not asked for in this round'}"
    return None


def _fault_of_values(answers: Declared, reply: Payload, sizes: Mapping[str, int]) -> str | None:
    """Return which entry is not what was declared: another form, a value out of range, a class that nobody saw."""
    for name, value in reply.items():
        sent = answers.get(name)
        if sent is not None and sent.shape is not None:
            fault = _fault_of_form(sent, value, sizes) or _fault_of_range(sent, value, sizes)
            if fault is not None:
                return f"{name}: {fault}"
    held = {name: len(value) for name, value in reply.items() if _counts_classes(value, answers.get(name))}
    ids = next((name for name in held if answers[name].kind == "class"), None)
    odd = next((name for name in held if ids is not None and held[name] != held[ids]), None)
    return None if odd is None else f"{odd}: not as many rows as {ids}"


def _fault_of_form(sent: Sent, value: Value, sizes: Mapping[str, int]) -> str | None:
    if not sent.shape:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        whole, wanted = isinstance(value, int), "a number"
    else:
        shape = _shape(value) or ()
        fits = len(shape) == len(sent.shape) and all(map(partial(_fits, sizes), sent.shape, shape))
        fits = fits and isinstance(value, Tensor) and value.element_size() == sent.item
        whole = isinstance(value, Tensor) and not value.is_floating_point()
        expected = [size if size in MOST else sizes.get(str(size), size) for size in sent.shape]
        wanted = f"{8 * sent.item} bits [{', '.join(map(str, expected))}]"
    if not fits:
        return f"expected {wanted}, got {_told(value)}"
    if whole and sent.kind == "number" and sent.shape:
        return f"expected fractions, got {_told(value)}"
    return None if whole or sent.kind == "number" else f"expected whole numbers, got {_told(value)}"


def _fits(sizes: Mapping[str, int], size: str | int, came: int) -> bool:
    """Tell whether a dimension is as declared; one that differs between clients has a limit."""
    if size in MOST:
        return came <= sizes[MOST[str(size)]]
    return came == (sizes.get(size, came) if isinstance(size, str) else size)


def _fault_of_range(sent: Sent, value: Value, sizes: Mapping[str, int]) -> str | None:
    if isinstance(value, Tensor) and value.numel() == 0:
        return None
    high = float(sizes[sent.high] if isinstance(sent.high, str) else sent.high)
    ranges = {"count": (0.0, float(sizes["n"])), "class": (0.0, sizes["C"] - 1.0), "number": (sent.low, high)}
    low, high = ranges[sent.kind]
    numbers = as_tensor(value)
    smallest, largest = float(numbers.min()), float(numbers.max())
    slack = ROUNDING if sent.kind == "number" else 0.0
    if low - slack <= smallest and largest <= high + slack:
        return None
    if sent.kind == "class":
        return f"a class that is not among the {sizes['C']} seen ones"
    if smallest < low - slack:
        return f"expected values of at least {low:g}, got {smallest:g}"
    return f"expected values of at most {high:g}, got {largest:g}"


def fault_of_header(header: Header, most: int = LARGEST_COUNT) -> str | None:
    """Return what is wrong with the words that come with a reply or a hello.

    :param most: exemplars that a client may keep.
    """
    state = {"generation": LARGEST_COUNT, "exemplars": most}
    for name, limit in state.items() if any(name in header for name in state) else ():
        if not is_count(count := header.get(name)) or count > limit:
            return f"{name}: expected a whole number of at most {limit}, got {header.get(name)!r:.40}"
    if not _is_time(header.get("seconds", 0.0)):
        return f"seconds: expected a number, got {header['seconds']!r:.40}"
    return None


def odd_ones(replies: Mapping[int, Payload], sends: Declared) -> dict[int, str]:
    """Return clients whose entries have another dtype or form than those of most clients, and what is odd.

    Only entries are compared that are declared in words alone: of the others the form is known. Their first dimension
    may differ. Replies without samples are not compared.
    """
    faults: dict[int, str] = {}
    full = {k: r for k, r in replies.items() if r.get(COUNT) != 0 and r}
    for name in sorted({name for r in full.values() for name in r if name in sends and sends[name].shape is None}):
        seen = {k: signature(r.get(name)) for k, r in full.items()}
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


def is_count(value: Any) -> TypeGuard[int]:
    """Tell whether a value is a whole number from zero to what a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def largest_of(value: Value) -> float:
    """Return the largest absolute value of a finite number or tensor; 0 of what is neither."""
    if isinstance(value, Tensor):
        return float(value.abs().max()) if value.numel() and value.is_floating_point() else 0.0
    return 0.0 if isinstance(value, str) else abs(float(value))


def seconds_of(header: Header) -> float:
    """Return how long a client says it worked; nothing if it does not say it in numbers."""
    seconds = header.get("seconds", 0.0)
    return float(seconds) if _is_time(seconds) else 0.0


def signature(value: Value | None) -> Signature:
    """Return what entries of the same name have in common: kind, dtype, and the shape but for its first dimension."""
    if isinstance(value, Tensor):
        return "tensor", value.dtype, value.dim(), tuple(value.shape[1:])
    return ("number",) if isinstance(value, int | float) else (type(value).__name__,)


def _counts_classes(value: Value, sent: Sent | None) -> TypeGuard[Tensor]:
    return sent is not None and sent.shape is not None and sent.shape[:1] == ("h",) and isinstance(value, Tensor)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and is_finite(value) and 0 <= value <= LARGEST


def _shape(value: Value | None) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _told(value: Value | None) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "nothing" if value is None else type(value).__name__
