"""FedCBDR's mathematics: leverage scores, draws by them, and masks that hide samples and cancel in the scores."""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedfeat.core.errors import FedfeatError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.methods.replay import even_shares

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


@lru_cache(maxsize=16)
def row_mask(seed: int, task: int, client: int, rows: int, *, block: int, device: torch.device = CPU) -> RowMask:
    """Return the mask at a client's own address, which it needs twice; nobody else draws there."""
    return RowMask(rows, rng_at(seed, "row-mask", task, client), block=block, device=device)


@lru_cache(maxsize=1)
def shared_rotation(seed: int, task: int, dim: int, device: torch.device = CPU) -> Tensor:
    """Return the rotation of features, ``Q``, that all clients share and the server does not know."""
    return random_orthogonal(dim, rng_at(seed, "feature-mask", task), device)


def left_singular_vectors(features: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Return the thin left singular vectors of non-negligible singular values, in float64."""
    if not features.isfinite().all():
        raise FedfeatError(
            "replay: exemplars are drawn by the model's features, and these are not finite: training diverged; "
            "lower train.lr and start again"
        )
    basis, small = torch.linalg.qr(features.double())  # many rows, few columns: the rest is done on a small matrix
    left, values, _ = torch.linalg.svd(small, full_matrices=False)
    vectors: Tensor = basis @ left[:, values > tolerance * values.max().clamp(min=1e-300)]
    return vectors


def draw_by_score(scores: np.ndarray, count: int, rng: np.random.Generator, *, replacement: bool) -> np.ndarray:
    """Draw positions with probability proportional to the score; zero scores come last when all are needed."""
    if not replacement:
        count = min(count, len(scores))
    if count == 0 or len(scores) == 0:
        return np.zeros(0, dtype=np.int64)
    positive = np.maximum(scores, 0.0) + 1e-12
    return rng.choice(len(scores), size=count, replace=replacement, p=positive / positive.sum())


def pass_on(wanted: np.ndarray, available: np.ndarray, total: int) -> np.ndarray:
    """Cap each wish at what is available and hand the rest round, one by one, to those who have more."""
    given = np.minimum(wanted, available)
    rest = even_shares((available - given).tolist(), total - int(given.sum()))
    shares: np.ndarray = given + np.array(rest, dtype=given.dtype)
    return shares


def allot_by_class(budget: int, reports: dict[int, Payload]) -> dict[int, int | Tensor]:
    """Give every class the same number of exemplars and split it over clients by their leverage in that class."""
    clients = list(reports)
    counts = np.stack([tensor_of(reports[k], "counts").cpu().numpy() for k in clients]).astype(np.int64)
    masses = np.stack([tensor_of(reports[k], "masses").cpu().numpy() for k in clients]).astype(np.float64).clip(min=0)
    per_class = even_shares(counts.sum(axis=0).tolist(), budget)
    shares = np.zeros_like(counts)
    for label, quota in enumerate(per_class):
        ideal = masses[:, label] / max(masses[:, label].sum(), 1e-12) * quota
        floor = np.minimum(np.floor(ideal).astype(np.int64), counts[:, label])
        by_remainder = np.argsort(-(ideal - floor), kind="stable")
        room = (counts[:, label] - floor)[by_remainder]
        floor[by_remainder] += np.array(even_shares(room.tolist(), quota - int(floor.sum())), dtype=np.int64)
        shares[:, label] = floor
    return {k: torch.from_numpy(shares[row]).int() for row, k in enumerate(clients)}
