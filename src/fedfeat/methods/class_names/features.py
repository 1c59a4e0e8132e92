"""From settings and class names to features, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import sha256
from fedfeat.methods.class_names.builtin import gaussian_features, ngram_features, orthogonal_features
from fedfeat.methods.class_names.settings import TextSettings
from fedfeat.methods.class_names.table import read_table, table_features, table_path
from fedfeat.methods.class_names.towers import check_tower, text_tower, tower_name

BUILTIN = {
    "ngrams": ngram_features,
    "gaussian": gaussian_features,
    "random_orthogonal": orthogonal_features,
}


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
