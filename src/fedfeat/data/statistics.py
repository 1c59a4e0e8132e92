"""Mean and standard deviation per channel, exact, without a float copy of the images."""

from __future__ import annotations

import numpy as np

from fedfeat.data.checks import Images


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std per channel on the scale 0..1, rounded to 4 decimals.

    A histogram of the 256 values holds all that is needed, so the result does not depend on chunking.
    """
    channels = images.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for start in range(0, len(images), 4096):
        chunk = images[start : start + 4096]
        for channel in range(channels):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    pixels = np.maximum(counts.sum(axis=1), 1)
    mean = counts @ values / pixels
    variance = counts @ values**2 / pixels - mean**2
    std = np.sqrt(np.maximum(variance, 0)).round(4)
    # A constant channel is only centred: dividing by its zero deviation would give NaN.
    std = np.where(std == 0, 1.0, std)
    return tuple(float(m) for m in mean.round(4)), tuple(float(s) for s in std)
