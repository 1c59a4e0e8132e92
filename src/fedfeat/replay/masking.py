"""Masks for features: orthogonal rotations that hide samples from the server and cancel in leverage scores."""

from __future__ import annotations

import itertools

import numpy as np

from fedfeat.draws import draw_at


def random_orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a Haar-distributed orthogonal matrix."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    signed: np.ndarray = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return signed


class RowMask:
    """A client's secret rotation of its samples, ``P``: a secret permutation, then one rotation per block of rows.

    With as many rows as a block it is a rotation of all of them; more rows cost linear time and memory instead
    of cubic and quadratic.
    """

    def __init__(self, rows: int, rng: np.random.Generator, *, block: int = 1024) -> None:
        self.order = rng.permutation(rows)
        edges = [*range(0, rows, block), rows]
        self.blocks = [(a, b, random_orthogonal(b - a, rng)) for a, b in itertools.pairwise(edges) if b > a]

    def apply(self, matrix: np.ndarray) -> np.ndarray:
        """Return ``P X``."""
        mixed = matrix[self.order]
        parts = [rotation @ mixed[a:b] for a, b, rotation in self.blocks]
        return np.concatenate(parts) if parts else mixed

    def undo(self, matrix: np.ndarray) -> np.ndarray:
        """Return ``P^T X``: rows back in the order of the samples."""
        out = np.empty_like(matrix)
        for a, b, rotation in self.blocks:
            out[self.order[a:b]] = rotation.T @ matrix[a:b]
        return out


def row_mask(seed: int, task: int, client: int, rows: int, *, block: int) -> RowMask:
    """Return the mask at a client's own address; nobody else draws there."""
    return RowMask(rows, draw_at(seed, "row-mask", task, client), block=block)


def shared_rotation(seed: int, task: int, dim: int) -> np.ndarray:
    """Return the rotation of features, ``Q``, that all clients share and the server does not know."""
    return random_orthogonal(dim, draw_at(seed, "feature-mask", task))
