"""Masks for features: orthogonal rotations that hide samples from the server and cancel in leverage scores."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from fedfeat.core.rng import rng_at

CPU = torch.device("cpu")


def random_orthogonal(size: int, rng: np.random.Generator, device: torch.device = CPU) -> Tensor:
    """Return a Haar-distributed orthogonal matrix in float64; its numbers are drawn on the CPU wherever it is made."""
    q, r = torch.linalg.qr(torch.from_numpy(rng.standard_normal((size, size))).to(device))
    signed: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return signed


class RowMask:
    """A client's secret rotation of its samples, ``P``: a secret permutation, then one rotation per block of rows.

    With as many rows as a block it is a rotation of all of them; more rows cost linear time and memory instead
    of cubic and quadratic.
    """

    def __init__(self, rows: int, rng: np.random.Generator, *, block: int = 256, device: torch.device = CPU) -> None:
        self.order = torch.from_numpy(rng.permutation(rows)).to(device)
        edges = [*range(0, rows, block), rows]
        self.blocks = [(a, b, random_orthogonal(b - a, rng, device)) for a, b in itertools.pairwise(edges) if b > a]

    def apply(self, matrix: Tensor) -> Tensor:
        """Return ``P X``."""
        mixed = matrix[self.order]
        parts = [rotation @ mixed[a:b] for a, b, rotation in self.blocks]
        return torch.cat(parts) if parts else mixed

    def undo(self, matrix: Tensor) -> Tensor:
        """Return ``P^T X``: rows back in the order of the samples."""
        out = torch.empty_like(matrix)
        for a, b, rotation in self.blocks:
            out[self.order[a:b]] = rotation.T @ matrix[a:b]
        return out


def row_mask(seed: int, task: int, client: int, rows: int, *, block: int, device: torch.device = CPU) -> RowMask:
    """Return the mask at a client's own address; nobody else draws there."""
    return RowMask(rows, rng_at(seed, "row-mask", task, client), block=block, device=device)


def shared_rotation(seed: int, task: int, dim: int, device: torch.device = CPU) -> Tensor:
    """Return the rotation of features, ``Q``, that all clients share and the server does not know."""
    return random_orthogonal(dim, rng_at(seed, "feature-mask", task), device)
