"""The simplex equiangular tight frame: C unit vectors as far apart from each other as C vectors can be."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfeat.core.errors import ConfigError
from fedfeat.core.rng import rng_at

Basis = Literal["haar", "axis"]


def orthonormal_basis(columns: int, dim: int, *, seed: int, basis: Basis = "haar") -> Tensor:
    """Return ``columns`` orthonormal vectors as a [dim, columns] matrix in float64.

    Asking for more columns with the same seed keeps the earlier ones, which is what lets an ETF grow with
    the classes. ``haar`` is uniform over all orthonormal systems; ``axis`` takes the first unit vectors.
    """
    if basis == "axis":
        return torch.eye(dim, columns, dtype=torch.float64)
    return torch.from_numpy(_haar(columns, dim, seed).copy())


@lru_cache(maxsize=64)
def _haar(columns: int, dim: int, seed: int) -> NDArray[np.float64]:
    """Return the basis, which every copy of a network asks for."""
    # One row per column and a sequential generator: the first rows do not depend on how many follow.
    gaussian = rng_at(seed, "etf-basis").standard_normal((columns, dim))
    q, r = np.linalg.qr(gaussian.T)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def simplex_etf(num_classes: int, dim: int, *, seed: int, basis: Basis = "haar") -> Tensor:
    """Return the simplex ETF of ``num_classes`` unit prototypes, one per column: Tensor[dim, num_classes].

    ``W = sqrt(C / (C - 1)) U (I - 11^T / C)``: columns of norm one, pairwise cosine ``-1 / (C - 1)``, summing
    to zero. It is determined by (seed, dim, num_classes), so a federation shares the seed and never the matrix.
    ETFs of one seed are *nested*: going from C to C' classes turns an old prototype as little as any ETF can.
    """
    if num_classes < 1 or dim < num_classes:
        raise ConfigError(
            f"a simplex ETF of {num_classes} classes needs features of at least {max(num_classes, 1)} dimensions, "
            f"got {dim}; use fewer classes or a wider backbone"
        )
    u = orthonormal_basis(num_classes, dim, seed=seed, basis=basis)
    if num_classes == 1:
        return u.float()
    w = math.sqrt(num_classes / (num_classes - 1)) * (u - u.mean(dim=1, keepdim=True))
    return w.float()


def etf_cosine(num_classes: int) -> float:
    """Return the cosine between two different prototypes of a simplex ETF, ``-1 / (C - 1)``."""
    return -1.0 / (num_classes - 1) if num_classes > 1 else 0.0
