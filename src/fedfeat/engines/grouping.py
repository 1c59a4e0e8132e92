"""Which small clients take a training step at once, how many of them fit, and when it pays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

MIB = 2**20
FEWEST_CLIENTS = 8  # with fewer than this, several replicas or a plain loop are as good
MOST_ROWS = 128  # more clients at once than this fill no GPU better
LEAST_FILLED = 0.5
# A client's step is small if its backward pass keeps no more than this. A GPU waits for the host on such steps, and
# they are better taken at once. A CPU does not wait, and its results are the reference: one by one unless asked.
SMALL_STEP = {"cuda": 64 * MIB}


class Group(NamedTuple):
    """Clients, by their place in a list, that take their next step at once, on batches of one size."""

    size: int
    members: tuple[int, ...]


def plan_steps(samples: Sequence[int], batch: int, epochs: int) -> list[Group]:
    """Return the steps of several clients' local training: each client sees its batches in their order.

    In an epoch all full batches come first, then remainders of equal size at once. No plan has fewer groups: every
    group has one size, and each client must take as many steps of its remainder as there are epochs.
    """
    full = [
        Group(batch, tuple(i for i, n in enumerate(samples) if n // batch > number))
        for number in range(max(samples, default=0) // batch)
    ]
    rests = [
        Group(rest, tuple(i for i, n in enumerate(samples) if n % batch == rest))
        for rest in sorted({n % batch for n in samples} - {0}, reverse=True)
    ]
    return (full + rests) * epochs


def filled(samples: Sequence[int], batch: int) -> float:
    """Return the mean share of clients that take part in a step: 1 if all are of one size, small if few are large."""
    steps = plan_steps(samples, batch, 1)
    return sum(len(s.members) for s in steps) / max(len(steps) * len(samples), 1)


def plan_rows(wanted: int, free_bytes: int, bytes_each: int, *, reserve: float = 0.25) -> int:
    """Return how many clients to stack at once at most: as many as memory allows, at least one.

    :param wanted: the user's limit, 0 for ours.
    """
    fit = int(free_bytes * (1 - reserve)) // max(bytes_each, 1)
    return max(1, min(wanted or MOST_ROWS, fit))


def pays(device: str, samples: Sequence[int], batch: int, step_bytes: int) -> bool:
    """Return whether clients with so many samples should train at once.

    :param step_bytes: what the backward pass of one client's full batch keeps.
    """
    many = len(samples) >= FEWEST_CLIENTS and step_bytes <= SMALL_STEP.get(device, 0)
    return many and filled(samples, batch) >= LEAST_FILLED


def padded(count: int, most: int) -> int:
    """Return the number of rows that a captured step of ``count`` clients has: the next power of two, or all."""
    return min(1 << max(count - 1, 0).bit_length(), most)


def even_parts(clients: Sequence[int], most: int) -> list[list[int]]:
    """Cut a list into as few parts as hold at most ``most`` each, of nearly equal lengths."""
    parts = -(-len(clients) // most)
    bounds = [len(clients) * i // parts for i in range(parts + 1)] if parts else [0]
    return [list(clients[a:b]) for a, b in pairwise(bounds)]
