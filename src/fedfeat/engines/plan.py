"""Planning for the CUDA engine: how many replicas fit, and which batch sizes a client's visit consists of."""

from __future__ import annotations

from collections.abc import Sequence

MOST_REPLICAS = 6  # more streams than this brought nothing on the cards measured


def plan_replicas(wanted: int, clients: int, free_bytes: int, bytes_each: int, *, reserve: float = 0.1) -> int:
    """Return how many replicas to run: as many as take part in a round, as memory allows, at least one.

    :param wanted: the user's choice, 0 for ours.
    :param bytes_each: what the first replica was measured to need.
    """
    most = wanted or min(clients, MOST_REPLICAS)
    fit = int(free_bytes * (1 - reserve)) // max(bytes_each, 1)
    return max(1, min(most, clients, 1 + fit))


def batch_sizes(samples: int, batch: int, epochs: int) -> list[int]:
    """Return the sizes of a visit's batches in order: full ones, then each epoch's remainder."""
    full, rest = divmod(samples, batch)
    return ([batch] * full + ([rest] if rest else [])) * epochs


def interleave(plans: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return (replica, step) in the order of launching: one step of each in turn, so that streams fill together."""
    longest = max((len(p) for p in plans), default=0)
    return [(replica, step) for step in range(longest) for replica, plan in enumerate(plans) if step < len(plan)]
