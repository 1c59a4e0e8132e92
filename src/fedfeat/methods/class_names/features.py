"""From settings and class names to features, computed once; some encoders need nothing but the name."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import sha256
from fedfeat.core.rng import rng_at
from fedfeat.methods.class_names.settings import TextSettings, readable
from fedfeat.methods.class_names.table import read_table, table_features, table_path
from fedfeat.methods.class_names.towers import check_tower, text_tower, tower_name

BUCKETS = 4096
MEAN_NORM, VARIANCE = 8.6, 0.04  # of CLIP's text features of CIFAR-100's class names, before normalisation


class TextFeatures(NamedTuple):
    """One vector per class, and what made it."""

    features: Tensor  # float32 [C, d]; shared by all who ask, never to be written into
    encoder: str


def class_features(settings: TextSettings, names: Sequence[str]) -> TextFeatures:
    """Encode class names in the given order.

    ``ngrams`` and ``random_orthogonal`` give unit vectors; the other encoders give what they have, so that a loss
    with a radius in it can rely on their scale.
    """
    if not names:
        raise ConfigError("text: there is no class name to encode; name at least one class")
    return _encode(settings, tuple(names))


def text_width(settings: TextSettings) -> int:
    """Return the width of an encoder's vectors."""
    if settings.encoder in BUILTIN:
        return settings.dim
    if settings.encoder == "table":
        return _table_width(settings)
    return len(_encode(settings, ("thing",)).features[0])


def encoder_name(settings: TextSettings) -> str:
    """Return the identity of an encoder for the record of a run; built-in ones are never called CLIP."""
    if settings.encoder in BUILTIN:
        return f"{settings.encoder}-{settings.dim}"
    if settings.encoder == "table":
        path = table_path(settings)
        return f"table-{path.name}-{sha256(path)[:8]}"
    return tower_name(settings.encoder, check_tower(settings), settings.arch)


def check_text(settings: TextSettings) -> None:
    """Refuse an encoder that could not run: a missing file, folder or package. Nothing is loaded."""
    if settings.encoder == "table":
        table_path(settings)
    elif settings.encoder not in BUILTIN:
        check_tower(settings)


@lru_cache(maxsize=64)
def _encode(settings: TextSettings, names: tuple[str, ...]) -> TextFeatures:
    if settings.encoder in BUILTIN:
        features = _tensor(BUILTIN[settings.encoder](names, settings.dim, settings.seed))
    elif settings.encoder == "table":
        features = _tensor(table_features(settings, names))
    else:
        features = text_tower(settings).text(settings.prompts(names))
    return TextFeatures(features, encoder_name(settings))


@lru_cache(maxsize=8)
def _table_width(settings: TextSettings) -> int:
    return int(read_table(table_path(settings))[0].shape[1])


def _tensor(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))


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
    drawn = np.stack([rng_at(seed, f"orthogonal/{name}").standard_normal(dim) for name in names])
    q, r = np.linalg.qr(drawn.T)
    rows: np.ndarray = (q * np.where(np.diag(r) < 0, -1.0, 1.0)).T
    return rows


def _bucket(ngram: str) -> int:
    # Python's own hash changes from process to process.
    return int.from_bytes(hashlib.blake2b(ngram.encode(), digest_size=8).digest(), "little") % BUCKETS


BUILTIN = {
    "ngrams": ngram_features,
    "gaussian": gaussian_features,
    "random_orthogonal": orthogonal_features,
}
