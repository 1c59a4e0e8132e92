"""The teacher as methods see it: unit vectors of samples and of class names, each sample encoded at most once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import expanded
from fedfeat.core.settings import Settings, setting
from fedfeat.data.augment import DeviceImages
from fedfeat.data.dataset import Dataset
from fedfeat.methods.class_names.settings import PLACE, readable
from fedfeat.methods.class_names.towers import Tower, load_tower, require, tower_name
from fedfeat.methods.clip2fl.teacher_cache import TeacherCache, check_kind, read_cache, rows_of, text_rows

CHUNK = 256  # images that a live teacher encodes at once
Live = Literal["open_clip", "transformers", "openai_clip"]
Backend = Literal["cache", "open_clip", "transformers", "openai_clip"]

WAYS = (
    "backend = cache with the file that `fedfeat teacher build` writes; backend = open_clip with a checkpoint or a "
    "folder; backend = transformers with the folder of a CLIP model; backend = openai_clip with the original .pt file"
)


class TeacherSettings(Settings):
    """Where the teacher comes from; nothing is ever downloaded."""

    backend: Backend | None = setting(
        None,
        "cache: a file of features; or the package that loads a local CLIP: open_clip, transformers, openai_clip",
        origin="none: the weights are yours to supply",
    )
    path: str | None = setting(
        None,
        "cache file, checkpoint or folder; ~ and $VARIABLES are expanded",
        origin="none: the weights are yours to supply",
    )
    arch: str = setting(
        "ViT-B-32-quickgelu",
        "architecture of an open_clip checkpoint; OpenAI's weights need a -quickgelu one",
        origin="released code",
    )
    prompt: str = setting(
        "a photo of a {class}", "what the text tower reads; {class} is the class name", origin="released code"
    )
    device: str = setting("cpu", "where a live teacher encodes: cpu, cuda", origin="a choice")


class CachedTeacher:
    """Features from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: tuple[int, Tensor] = (-1, torch.empty(0))

    @cached_property
    def cache(self) -> TeacherCache:
        """The file's content, read when first needed."""
        return read_cache(self.path)

    @property
    def identity(self) -> str:
        """The model that the features came from."""
        return f"cache-{self.cache.model_id}"

    def text(self, names: Sequence[str]) -> Tensor:
        """Return the stored rows of these classes as unit vectors, float32 [C, d]."""
        return _unit(text_rows(self.cache, names))

    def images(self, images: DeviceImages, indices: Tensor, names: Sequence[str]) -> Tensor:
        """Return the stored rows of these samples as unit vectors [n, d]; ``names`` are the seen classes'."""
        if self._rows[0] != len(names):
            self._rows = len(names), rows_of(self.cache, images.labels, names)
        return _unit(self.cache.image_features[self._rows[1][indices.cpu()]])


class LiveTeacher:
    """A local CLIP; what it encoded is remembered while the process lives."""

    def __init__(self, settings: TeacherSettings, path: Path) -> None:
        self.settings, self.path = settings, path
        self.known: dict[int, Tensor] = {}
        self.known_names: dict[str, Tensor] = {}

    @cached_property
    def tower(self) -> Tower:
        """The model, loaded when first needed."""
        assert self.settings.backend is not None
        return load_tower(self.settings.backend, self.path, self.settings.arch, self.settings.device)

    @property
    def identity(self) -> str:
        """Package and weights."""
        assert self.settings.backend is not None
        return tower_name(self.settings.backend, self.path, self.settings.arch)

    def text(self, names: Sequence[str]) -> Tensor:
        """Encode a prompt per class."""
        new = [name for name in names if name not in self.known_names]
        if new:
            features = self.tower.text([self.settings.prompt.replace(PLACE, readable(name)) for name in new])
            self.known_names.update(zip(new, _unit(features), strict=True))
        return torch.stack([self.known_names[name] for name in names])

    def images(self, images: DeviceImages, indices: Tensor, names: Sequence[str]) -> Tensor:
        """Encode the samples that were not met before."""
        new = [i for i in dict.fromkeys(indices.tolist()) if i not in self.known]
        for start in range(0, len(new), CHUNK):
            chunk = new[start : start + CHUNK]
            features = self.encode(images.images[chunk].cpu().numpy())
            self.known.update(zip(chunk, features, strict=True))
        return torch.stack([self.known[i] for i in indices.tolist()])

    def encode(self, pixels: np.ndarray) -> Tensor:
        """Return unit vectors of uint8 images [N, H, W, C]."""
        if self.tower.images is None:
            raise ConfigError(
                f"clip2fl.teacher.path: {self.path} has no image tower; give a CLIP model, not a text encoder"
            )
        return _unit(self.tower.images(pixels))


Teacher = CachedTeacher | LiveTeacher


def make_teacher(settings: TeacherSettings) -> Teacher:
    """Return the teacher that the settings name; what is missing is refused here, before any data is touched."""
    path = expanded(settings.path)
    if settings.backend is None or path is None or not path.exists():
        came = "none is set" if path is None or settings.backend is None else f"{path} does not exist"
        raise ConfigError(
            f"clip2fl.teacher: clip2fl needs CLIP's image and text towers and {came}; the weights are yours to supply, "
            f"in one of four ways: {WAYS}"
        )
    if settings.backend == "cache":
        check_kind(path)
        return CachedTeacher(path)
    require(settings.backend)
    return LiveTeacher(settings, path)


def encode_all(teacher: LiveTeacher, dataset: Dataset, progress: Callable[[int, int], None]) -> TeacherCache:
    """Encode a whole training set for a cache; ``progress`` hears (images done, images in all)."""
    encoded = []
    count = len(dataset.train_images)
    for start in range(0, count, CHUNK):
        encoded.append(teacher.encode(np.asarray(dataset.train_images[start : start + CHUNK])))
        progress(min(start + CHUNK, count), count)
    return TeacherCache(
        image_features=torch.cat(encoded),
        text_features=teacher.text(dataset.class_names),
        class_names=tuple(dataset.class_names),
        labels=torch.from_numpy(np.array(dataset.train_labels)),
        model_id=teacher.identity,
    )


def _unit(features: Tensor) -> Tensor:
    # Half precision is widened first: the norm of half-precision features is off in the third digit.
    return F.normalize(features.float(), dim=1, eps=1e-8)
