"""A teacher in a file: features of every training image and of every class name, computed once, elsewhere.

``.safetensors`` (what ``fedfeat teacher build`` writes) or ``.npz``, with ``image_features`` [N, d] in the order of
the training set, ``text_features`` [C, d], class names, the model's name, and the images' ``labels`` [N]. With labels
a file of all classes also serves a run on some of them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import write_atomically

WHERE = "clip2fl.teacher.path"
REBUILD = "write one with: fedfeat teacher build"
NEEDED = ("image_features", "text_features")


class TeacherCache(NamedTuple):
    """What the file holds."""

    image_features: Tensor  # [N, d], as stored
    text_features: Tensor  # [C, d], as stored
    class_names: tuple[str, ...]
    labels: Tensor | None  # [N], positions in ``class_names``
    model_id: str


def read_cache(path: Path) -> TeacherCache:
    """Read and check a cache."""
    try:
        cache = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    except (OSError, SafetensorError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"{WHERE}: {path} is not a teacher cache ({reason}); {REBUILD}") from error
    _check(path, cache)
    return cache


def check_kind(path: Path) -> None:
    """Refuse, without reading it, a file that cannot be a cache."""
    if not path.is_file():
        raise ConfigError(f"{WHERE}: there is no file {path}; {REBUILD}")
    if path.suffix not in (".npz", ".safetensors"):
        raise ConfigError(f"{WHERE}: expected a .safetensors or .npz file, got {path.name}; {REBUILD}")


def write_cache(path: Path, cache: TeacherCache) -> None:
    """Write a cache whole or not at all; features are stored in half precision."""
    tensors = {
        "image_features": cache.image_features.half().contiguous(),
        "text_features": cache.text_features.float().contiguous(),
    }
    if cache.labels is not None:
        tensors["labels"] = cache.labels.int().contiguous()
    metadata = {"class_names": json.dumps(cache.class_names), "model_id": cache.model_id}
    write_atomically(path, save(tensors, metadata))


def rows_of(cache: TeacherCache, labels: Tensor, names: Sequence[str]) -> Tensor:
    """Return each training sample's row of the cache, -1 for classes that are not seen yet.

    ``labels`` [N] count classes in their order of arrival, and ``names`` are those of the seen ones. Samples are
    matched class by class, in their order within the class; a cache without labels must have a row per sample.
    """
    if cache.labels is None:
        if len(cache.image_features) != len(labels):
            raise ConfigError(
                f"{WHERE}: the cache has {len(cache.image_features)} images and the training set {len(labels)}; "
                f"{REBUILD}"
            )
        return torch.arange(len(labels))
    stored, wanted = cache.labels.cpu(), labels.cpu()
    rows = torch.full((len(wanted),), -1)
    for position, name in enumerate(names):
        here, cached = wanted == position, stored == _class_row(cache, name)
        if int(here.sum()) != int(cached.sum()):
            raise ConfigError(
                f"{WHERE}: the cache has {int(cached.sum())} images of {name!r} and the training set "
                f"{int(here.sum())}; {REBUILD}"
            )
        rows[here] = cached.nonzero().flatten()
    return rows


def text_rows(cache: TeacherCache, names: Sequence[str]) -> Tensor:
    """Return the text features of these classes."""
    return cache.text_features[[_class_row(cache, name) for name in names]]


def _class_row(cache: TeacherCache, name: str) -> int:
    if name not in cache.class_names:
        raise ConfigError(f"{WHERE}: the cache knows no class {name!r}; {REBUILD}")
    return cache.class_names.index(name)


def _read_safetensors(path: Path) -> TeacherCache:
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
        images, text = (file.get_tensor(key) for key in NEEDED)
        labels = file.get_tensor("labels") if "labels" in file.keys() else None  # noqa: SIM118
    names = tuple(json.loads(metadata["class_names"]))
    return TeacherCache(images, text, names, labels, metadata.get("model_id", "unnamed"))


def _read_npz(path: Path) -> TeacherCache:
    with np.load(path, allow_pickle=False) as file:
        images, text = (torch.from_numpy(file[key]) for key in NEEDED)
        labels = torch.from_numpy(file["labels"]) if "labels" in file.files else None
        names = tuple(str(name) for name in file["class_names"])
        model_id = str(file["model_id"]) if "model_id" in file.files else "unnamed"
    return TeacherCache(images, text, names, labels, model_id)


def _check(path: Path, cache: TeacherCache) -> None:
    images, text = cache.image_features, cache.text_features
    widths = {t.shape[-1] for t in (images, text)}
    if images.ndim != 2 or text.ndim != 2 or len(widths) != 1 or not images.is_floating_point():
        raise ConfigError(
            f"{WHERE}: {path} should hold image_features [N, d] and text_features [C, d], got "
            f"{list(images.shape)} and {list(text.shape)}; {REBUILD}"
        )
    if len(text) != len(cache.class_names):
        raise ConfigError(f"{WHERE}: {path} has {len(text)} text features for {len(cache.class_names)} class names")
    if cache.labels is not None and len(cache.labels) != len(images):
        raise ConfigError(f"{WHERE}: {path} has {len(cache.labels)} labels for {len(images)} images; {REBUILD}")
