"""The built-in data set: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfeat.data.source import Decoded, every_nth_to_test, keep_classes

MEAN = (0.3049,)
STD = (0.3756,)


@dataclass(frozen=True)
class DigitsSource:
    """Within each class, in the original order, every 4th sample is a test sample."""

    kind: str = "digits"
    files: tuple[Path, ...] = ()
    class_names: tuple[str, ...] = tuple("0123456789")

    def decode(self, keep: Sequence[int]) -> Decoded:
        """Scale the 17 grey levels to 0..255 and split."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.round(bunch.images * 255 / 16).astype(np.uint8)[..., None]
        labels = bunch.target.astype(np.int64)
        test = every_nth_to_test(labels, 4)
        decoded = Decoded(images[~test], labels[~test], images[test], labels[test])
        return keep_classes("digits", decoded, keep, len(self.class_names))
