"""A teacher without knowledge, so that methods that need one can be put together and run for the documents."""

from __future__ import annotations

from pathlib import Path

import torch

from fedfeat.data.dataset import Dataset
from fedfeat.methods.clip2fl.clip2fl import CLIP2FLSettings
from fedfeat.methods.clip2fl.teacher import TeacherSettings
from fedfeat.methods.clip2fl.teacher_cache import TeacherCache, write_cache

WIDTH = 32


def teacher_settings(folder: Path, dataset: Dataset | None = None) -> CLIP2FLSettings:
    """Write random features for a data set and return settings that use them; without one they are empty."""
    names = dataset.class_names if dataset else ("thing",)
    labels = torch.from_numpy(dataset.train_labels.copy()) if dataset else torch.zeros(1, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    cache = TeacherCache(
        image_features=torch.randn(len(labels), WIDTH, generator=generator),
        text_features=torch.randn(len(names), WIDTH, generator=generator),
        class_names=tuple(names),
        labels=labels,
        model_id="random",
    )
    path = folder / "teacher.safetensors"
    write_cache(path, cache)
    return CLIP2FLSettings(
        features_per_class=4,
        match_epochs=2,
        retrain_epochs=2,
        repeats=1,
        teacher=TeacherSettings(backend="cache", path=str(path)),
    )
