"""Replies as integers modulo 2^k: what clients send adds up, and the sum is read as one reply of all of them.

An entry is rounded to fixed point and multiplied by its weight: 1, or the count that a mean is weighted by. Weights are
added up too, so the server learns means over clients without the number behind each. Integers know no order: whoever
adds, with masks or without, gets the same bytes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfeat.algorithm.engine import NOT_FINITE, DropOut
from fedfeat.algorithm.method import Method
from fedfeat.algorithm.sent import LARGEST, Sent
from fedfeat.config.config import Config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.payload import Payload, as_tensor, number_of, tensor_of
from fedfeat.federation.evaluation import SENDS
from fedfeat.federation.screen import COUNT, TRAIN, WEIGHTS, declared_losses

Numbers = dict[str, NDArray[Any]]  # unsigned integers by entry, in the order of a layout
BEHIND = "behind"  # the weights of all entries, one after another
MOST_BEHIND = 2**20  # largest weight of one client: images behind a mean
LARGEST_MEAN = 2.0**14  # of a weighted number whose range is not declared
FINEST = 2.0**32  # steps per unit
FEWEST, BITS, LARGEST_CHANGE = 3, 32, 64.0  # where the settings leave them out
log = logging.getLogger("fedfeat.client")


class UnusableSum(FedfeatError):
    """A sum that cannot be opened, or is not what clients can have sent."""


@dataclass(frozen=True)
class SummedEntry:
    """One entry as fixed-point numbers."""

    name: str
    sent: Sent
    shape: tuple[int, ...]  # with a row for every seen class where clients name those that they hold
    bits: int
    limit: float  # largest absolute value; beyond it a value is cut
    clients: int  # how many may add up
    by: str = ""  # the count that a mean is weighted by
    mean: bool = False
    classes: str = ""  # the entry that says which classes the rows of a reply belong to

    @property
    def step(self) -> float:
        """What a unit of the integers is worth: a power of two, so large that the sum of all clients fits."""
        if self.sent.kind == "count":
            return 1.0
        most = 2.0 ** (self.bits - 1) / (self.clients * self.limit * (MOST_BEHIND if self.by else 1))
        return 1.0 / min(FINEST, 2.0 ** (math.ceil(math.log2(most)) - 1))

    @property
    def dtype(self) -> Any:
        """The unsigned integers that hold it."""
        return np.uint32 if self.bits == 32 else np.uint64

    @property
    def by_class(self) -> bool:
        """Whether clients send rows for the classes that they hold."""
        return self.sent.shape is not None and self.sent.shape[:1] == ("h",)

    def weight_in(self, reply: Payload) -> int:
        """Return how much a reply counts in a mean or, for a sum, whether it has the entry."""
        if self.name not in reply:
            return 0
        weight = int(number_of(reply, self.by)) if self.by else 1
        if not 0 <= weight <= MOST_BEHIND:
            raise DropOut("failed", f"{self.by}: expected at most {MOST_BEHIND} behind a masked mean, got {weight}")
        return weight


Layout = tuple[SummedEntry, ...]


class Sums:
    """Which operations of a run are answered in sums, and what is in them."""

    def __init__(self, config: Config, method: Method, *, private: bool) -> None:
        self.privacy, self.by_samples = config.privacy, config.train.aggregation == "samples"
        self.clients = config.scenario.clients
        trained = declared_losses(method) if method.trains else {}
        self.sends = {**method.sends, **trained, **(SENDS if private else {})}
        self.ops = {sent.op for sent in self.sends.values()}

    @property
    def fewest(self) -> int:
        """Fewest clients in a sum."""
        return self.privacy.fewest_clients or FEWEST

    def threshold(self, clients: int) -> int:
        """Return how many of the clients that begin must stay: the share that is set, and always more than half."""
        share = math.ceil((self.privacy.threshold or 0.5) * clients - 1e-9)
        return max(share, clients // 2 + 1)

    def layout(self, op: str, request: Payload, sizes: Mapping[str, int]) -> Layout:
        """Return the entries of an operation in the order in which they are masked.

        :param sizes: see ``BaseEngine.reply_sizes``.
        """
        entries = []
        if op == TRAIN:
            bits = self.privacy.bits or BITS
            limit, by = self.privacy.largest or LARGEST_CHANGE, COUNT if self.by_samples else ""
            shape, sent = tuple(tensor_of(request, WEIGHTS).shape), Sent(f"up/{TRAIN}/{WEIGHTS}")
            entries.append(SummedEntry(WEIGHTS, sent, shape, bits, limit, self.clients, by, mean=True))
        declared = {COUNT: Sent(f"up/{TRAIN}/{COUNT}", kind="count"), **self.sends}
        for name, sent in declared.items():
            if sent.op == op and sent.kind != "class" and sent.expected(sizes["task"], request):
                shape = tuple(_size(s, request, sizes) for s in sent.shape or ())
                classes = next((n for n, s in declared.items() if (s.op, s.kind) == (op, "class")), "")
                mean, limit = bool(sent.by), _limit(sent, sizes)
                entries.append(SummedEntry(name, sent, shape, 64, limit, self.clients, sent.by, mean, classes))
        return tuple(entries)


def encoded(reply: Payload, request: Payload, layout: Layout) -> Numbers:
    """Return a reply as integers; entries that it does not have are zeros that weigh nothing."""
    weights = [entry.weight_in(reply) for entry in layout]
    numbers = {}
    for entry, weight in zip(layout, weights, strict=True):
        if weight:
            whole = _whole(entry, reply, request).to(torch.int32 if entry.bits == 32 else torch.int64)
            numbers[entry.name] = (whole.flatten() * weight if entry.by else whole.flatten()).numpy().view(entry.dtype)
        else:
            numbers[entry.name] = np.zeros(math.prod(entry.shape), dtype=entry.dtype)
    numbers[BEHIND] = np.array(weights, dtype=np.uint64)
    return numbers


def decoded(total: Numbers, request: Payload, layout: Layout) -> Payload:
    """Return the sum of encoded replies as one reply: of a client that holds what all of them hold."""
    joined: Payload = {}
    for entry, weight in zip(layout, signed(total[BEHIND]).tolist(), strict=True):
        if weight <= 0:
            continue
        values = torch.from_numpy(signed(total[entry.name]).copy()).view(entry.shape)
        if entry.sent.kind == "count":
            dtype = torch.int64 if entry.sent.item == 8 else torch.int32
            joined[entry.name] = values.to(dtype) if entry.shape else int(values)
            continue
        values = values.double() * (entry.step / weight if entry.mean else entry.step)
        if entry.name == WEIGHTS:
            received = tensor_of(request, WEIGHTS)
            joined[WEIGHTS] = (received.double() + values.to(received.device)).to(received.dtype)
        elif entry.shape:
            joined[entry.name] = values if entry.sent.item == 8 else values.float()
        else:
            joined[entry.name] = float(values)
    for entry in layout:
        if entry.by_class and entry.name in joined:
            joined[entry.classes] = torch.arange(entry.shape[0])
        if entry.by not in ("", COUNT) and joined.get(entry.by) == 0:  # a mean over nothing, as each client sends it
            joined[entry.name] = torch.zeros(entry.shape) if entry.shape else 0.0
    return joined


def check_sum(total: Numbers, layout: Layout, clients: int) -> None:
    """Refuse a sum that is more than so many clients can have sent."""
    for entry, weight in zip(layout, signed(total[BEHIND]).tolist(), strict=True):
        most = clients * (MOST_BEHIND if entry.by else 1)
        if not 0 <= weight <= most:
            raise UnusableSum(f"{entry.name}: {clients} clients with a weight of {weight} in all")
        bound = entry.limit / entry.step * (weight if entry.by else clients)
        whole = signed(total[entry.name])
        if max(int(whole.max(initial=0)), -int(whole.min(initial=0))) > bound + weight:
            raise UnusableSum(f"{entry.name}: a sum that is larger than {clients} clients may send")


def of_several(sends: Mapping[str, Sent], sizes: Mapping[str, int], clients: int) -> dict[str, Sent]:
    """Return declarations with the ranges of sums over so many clients; a mean stays in the range of one."""
    found = dict(sends)
    for name, sent in sends.items():
        if sent.kind == "number" and not sent.by:
            high = sizes[sent.high] if isinstance(sent.high, str) else sent.high
            found[name] = replace(sent, low=sent.low * clients, high=high * clients)
    return found


def check_norm(mean: Payload, request: Payload, trained: int, clip: float, noise: float) -> None:
    """Refuse a mean of clipped updates that is longer than the longest of them can be."""
    if WEIGHTS not in mean:
        return
    received = tensor_of(request, WEIGHTS)[:trained].double()
    norm = float(torch.linalg.vector_norm(tensor_of(mean, WEIGHTS)[:trained].double() - received))
    # Rounding, and the norm of Gaussian noise, which is hardly ever six deviations beyond its usual one.
    most = clip * (1.001 + noise * (math.sqrt(trained) + 6))
    if not norm <= most:
        raise UnusableSum(f"{WEIGHTS}: the mean of updates clipped to {clip:g} has norm {norm:.3g}")


def added(total: Numbers | None, numbers: Numbers) -> Numbers:
    """Return a sum with one more reply in it, modulo 2^k; the sum so far is written into."""
    if total is None:
        return {name: array.copy() for name, array in numbers.items()}
    for name, array in numbers.items():
        total[name] += array
    return total


def signed(array: NDArray[Any]) -> NDArray[Any]:
    """Return residues as the whole numbers around zero that they stand for."""
    return array.view(np.int32 if array.dtype == np.uint32 else np.int64)


def to_payload(numbers: Numbers) -> Payload:
    """Return integers as tensors, which have no unsigned kinds that every version can send."""
    return {name: torch.from_numpy(signed(array)) for name, array in numbers.items()}


def from_payload(payload: Payload, layout: Layout) -> Numbers:
    """Return the integers of a reply; one that has not the form of the layout is a ``DropOut``."""
    forms = {e.name: (math.prod(e.shape), e.dtype) for e in layout} | {BEHIND: (len(layout), np.uint64)}
    if payload.keys() != forms.keys():
        raise DropOut("failed", "a masked reply with entries that were not asked for, or without some that were")
    numbers = {}
    for name, (size, dtype) in forms.items():
        value = payload[name]
        kind = torch.int32 if dtype == np.uint32 else torch.int64
        if not isinstance(value, Tensor) or value.dtype != kind or tuple(value.shape) != (size,):
            raise DropOut("failed", f"{name}: a masked entry of another form than asked for")
        numbers[name] = value.cpu().contiguous().numpy().view(dtype)
    return numbers


def _size(symbol: str | int, request: Payload, sizes: Mapping[str, int]) -> int:
    if isinstance(symbol, int):
        return symbol
    symbol = "C" if symbol == "h" else symbol
    return sizes[symbol] if symbol in sizes else int(number_of(request, symbol))


def _limit(sent: Sent, sizes: Mapping[str, int]) -> float:
    if sent.kind == "count":
        return LARGEST
    high = float(sizes[sent.high] if isinstance(sent.high, str) else sent.high)
    declared = max(abs(sent.low), abs(high))
    return min(declared, LARGEST_MEAN) if sent.by else declared


def _whole(entry: SummedEntry, reply: Payload, request: Payload) -> Tensor:
    """Return an entry in whole steps: cut to its limit, rounded, a row for every class.

    Steps are powers of two, so a float32 is scaled and rounded without an error of its own.
    """
    values = as_tensor(reply[entry.name]).detach()
    if entry.name == WEIGHTS:
        values = values - tensor_of(request, WEIGHTS).to(values)
    values = values.cpu()
    least, most = (float(v) for v in values.aminmax()) if values.numel() else (0.0, 0.0)
    if not math.isfinite(least + most):
        raise DropOut("failed", f"{entry.name}: {NOT_FINITE}")
    if max(most, -least) > entry.limit:
        beyond = int((values.abs() > entry.limit).sum())
        log.warning("%s: %d numbers beyond %g were cut to it before they were masked", entry.name, beyond, entry.limit)
        values = values.clamp(-entry.limit, entry.limit)
    whole = (values / entry.step).round() if values.is_floating_point() else values.clone()
    if entry.by_class:
        rows = torch.zeros(entry.shape, dtype=torch.int64)
        whole = rows.index_add(0, tensor_of(reply, entry.classes).cpu().long(), whole.long())
    return whole
