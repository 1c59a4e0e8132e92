"""Planning for the CUDA engine: how many replicas fit, and which batch sizes a client's local update consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MOST_REPLICAS = 6  # more streams than this brought nothing on the GPUs measured


def plan_replicas(wanted: int, clients: int, free_bytes: int, bytes_each: int, *, reserve: float = 0.1) -> int:
    """Return how many replicas to run: as many as take part in a round, as memory allows, at least one.

    :param wanted: the user's choice, 0 for ours.
    :param bytes_each: what the first replica was measured to need.
    """
    most = wanted or min(clients, MOST_REPLICAS)
    fit = int(free_bytes * (1 - reserve)) // max(bytes_each, 1)
    return max(1, min(most, clients, 1 + fit))


def longest_first(clients: Sequence[int], samples: Mapping[int, int]) -> list[int]:
    """Return the clients that have samples, those with most first; among equals the lower id."""
    return sorted((k for k in clients if samples.get(k)), key=lambda k: (-samples[k], k))


def stream_priority(number: int, least: int, greatest: int) -> int:
    """Return the priority of a replica's stream: the first replica, which gets the longest update, has the greatest.

    In CUDA smaller numbers go first: ``greatest`` is at most ``least``.
    """
    return min(greatest + number, least)


def batch_sizes(samples: int, batch: int, epochs: int) -> list[int]:
    """Return the sizes of an update's batches in order: full ones, then each epoch's remainder."""
    full, rest = divmod(samples, batch)
    return ([batch] * full + ([rest] if rest else [])) * epochs


def interleave(plans: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return (replica, step) in the order of launching: each plan evenly over the whole, so that all end together."""
    steps = ((replica, step) for replica, plan in enumerate(plans) for step in range(len(plan)))
    return sorted(steps, key=lambda launch: ((launch[1] + 0.5) / len(plans[launch[0]]), launch))
