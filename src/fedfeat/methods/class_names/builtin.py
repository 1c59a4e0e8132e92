"""Encoders that need nothing but the class name: each row depends on its name alone (and the seed)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedfeat.core.errors import ConfigError
from fedfeat.core.rng import rng_at
from fedfeat.methods.class_names.settings import readable

BUCKETS = 4096
MEAN_NORM, VARIANCE = 8.6, 0.04  # of CLIP's text features of CIFAR-100's class names, before normalisation


def ngrams(name: str, shortest: int = 3, longest: int = 5) -> list[str]:
    """Return the character n-grams of a name in lower case, with its ends marked by a space."""
    text = f" {readable(name).lower()} "
    found = [text[i : i + n] for n in range(shortest, longest + 1) for i in range(len(text) - n + 1)]
    return found or [text]


def ngram_features(names: Sequence[str], dim: int, seed: int) -> np.ndarray:
    """Hash n-grams into buckets, project the counts with a seeded random matrix, normalise: [C, dim].

    ``pine_tree`` and ``oak_tree`` share n-grams, hence lie closer than ``pine_tree`` and ``rocket``; no more is known.
    """
    projection = rng_at(seed, "ngram-projection").standard_normal((BUCKETS, dim))
    rows = np.empty((len(names), dim))
    for row, name in zip(rows, names, strict=True):
        counts = Counter(map(_bucket, ngrams(name)))
        # A sum per name, not one product for all: a row must not depend on who its neighbours are.
        weighted = projection[list(counts)] * np.array(list(counts.values()))[:, None]
        row[:] = weighted.sum(axis=0)
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def gaussian_features(names: Sequence[str], dim: int, seed: int) -> np.ndarray:
    """Return one common mean plus a draw per name, with the scale and spacing of CLIP's text features: [C, dim]."""
    mean = rng_at(seed, "gaussian-anchor-mean").standard_normal(dim)
    mean *= MEAN_NORM / np.linalg.norm(mean)
    own = [rng_at(seed, f"gaussian-anchor/{name}").standard_normal(dim) for name in names]
    anchors: np.ndarray = mean + np.sqrt(VARIANCE) * np.stack(own)
    return anchors


def orthogonal_features(names: Sequence[str], dim: int, seed: int) -> np.ndarray:
    """Return orthonormal rows; a row depends on its name and the names before it: [C, dim]."""
    if len(names) > dim:
        raise ConfigError(
            f"text: {len(names)} classes cannot be orthogonal in {dim} dimensions; raise dim or choose ngrams"
        )
    draws = np.stack([rng_at(seed, f"orthogonal/{name}").standard_normal(dim) for name in names])
    q, r = np.linalg.qr(draws.T)
    rows: np.ndarray = (q * np.where(np.diag(r) < 0, -1.0, 1.0)).T
    return rows


def _bucket(ngram: str) -> int:
    # Python's own hash changes from process to process.
    return int.from_bytes(hashlib.blake2b(ngram.encode(), digest_size=8).digest(), "little") % BUCKETS
