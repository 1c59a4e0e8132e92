"""How one task's samples are partitioned over clients: capped and plain Dirichlet, IID, shards.

A partitioner takes the task's sample indices class by class and a generator, NumPy's modern or legacy one,
and returns a ``Split``. All work on arrays over clients, so ten thousand clients cost little more than ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Generator = np.random.Generator | np.random.RandomState


@dataclass(frozen=True, eq=False)
class Split:
    """A sequence of index arrays, one per client, kept as one array and the places where clients begin."""

    indices: Ids
    offsets: Ids

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ids:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} is not one of 0 to {len(self) - 1}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Ids]:
        return (self[client] for client in range(len(self)))

    @property
    def sizes(self) -> Ids:
        """Samples per client."""
        return np.diff(self.offsets)

    @staticmethod
    def of(indices: Ids, sizes: Ids) -> Split:
        """Build a split from indices that already lie client by client."""
        return Split(indices, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def dirichlet(classes: Sequence[Ids], clients: int, rng: Generator, beta: float, capped: bool = True) -> Split:
    """Partition each class by proportions drawn from a symmetric Dirichlet distribution.

    With ``capped``, a client that already holds an even share of the task gets nothing of the next class,
    which keeps every client within one class of the even share. The order of draws (class by class: shuffle,
    then proportions) is that of the published code, so the legacy generator reproduces its splits.
    """
    even_share = sum(map(len, classes)) / clients
    sizes = np.zeros(clients, dtype=np.int64)
    shuffled, counts = [], []
    for members in classes:
        shuffled.append(members.copy())
        rng.shuffle(shuffled[-1])
        proportions = rng.dirichlet(np.full(clients, beta))
        if capped:
            proportions = proportions * (sizes < even_share)
        counts.append(_cut(proportions, len(members), sizes))
        sizes += counts[-1]
    owners = np.concatenate([np.repeat(np.arange(clients), of_class) for of_class in counts])
    return _by_owner(np.concatenate(shuffled), owners, clients)


def iid(classes: Sequence[Ids], clients: int, rng: Generator) -> Split:
    """Partition all samples at random into parts whose sizes differ by at most one."""
    return Split.of(rng.permutation(np.concatenate(classes)), even_sizes(sum(map(len, classes)), clients))


def shards(classes: Sequence[Ids], clients: int, rng: Generator, per_client: int) -> Split:
    """Cut the samples, sorted by class, into equal shards and give each client ``per_client`` random ones."""
    shuffled = [rng.permutation(members) for members in classes]
    sizes = even_sizes(sum(map(len, classes)), clients * per_client)
    owners = np.repeat(rng.permutation(len(sizes)) % clients, sizes)
    return _by_owner(np.concatenate(shuffled), owners, clients)


def even_sizes(total: int, parts: int) -> Ids:
    """Share a total among parts: the floor for each, the remainder one by one to the first."""
    return np.full(parts, total // parts, dtype=np.int64) + (np.arange(parts) < total % parts)


def shuffle_within(split: Split, rng: Generator) -> Split:
    """Return the split with each client's samples in random order; clients are visited by increasing id."""
    mixed = Split(split.indices.copy(), split.offsets)
    for samples in mixed:
        rng.shuffle(samples)
    return mixed


def _cut(proportions: NDArray[np.float64], total: int, sizes: Ids) -> Ids:
    """Turn proportions into whole samples; the last client takes what rounding left."""
    mass = proportions.sum()
    if not mass > 0:
        # A small beta puts all mass on clients closed by the cap, or underflows: the smallest takes over.
        return np.where(np.arange(len(sizes)) == sizes.argmin(), total, 0)
    cuts = (np.cumsum(proportions / mass) * total).astype(np.int64)
    return np.diff(cuts[:-1], prepend=0, append=total)


def _by_owner(indices: Ids, owners: Ids, clients: int) -> Split:
    return Split.of(indices[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=clients))
