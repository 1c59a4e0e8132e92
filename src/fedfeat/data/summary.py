"""What there is to know of a loaded data set, as plain numbers for a screen or a JSON file."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedfeat.data.checks import Labels
from fedfeat.data.dataset import Dataset, fingerprint


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Return counts per split and class, the image size and the fingerprint."""
    return {
        "name": dataset.name,
        "classes": dataset.num_classes,
        "image_size": "x".join(str(n) for n in dataset.image_shape),
        "train": _split(dataset.train_labels, dataset.num_classes),
        "test": _split(dataset.test_labels, dataset.num_classes),
        "sha256": fingerprint(dataset),
    }


def _split(labels: Labels, num_classes: int) -> dict[str, int]:
    counts = np.bincount(labels, minlength=num_classes)
    return {"images": len(labels), "per_class_min": int(counts.min()), "per_class_max": int(counts.max())}
