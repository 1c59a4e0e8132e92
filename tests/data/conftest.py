"""Small real files of every layout; nothing here touches the user's own folders."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture(autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FEDFEAT_HOME", str(home))
    monkeypatch.delenv("FEDFEAT_DATA", raising=False)
    return home


def encode_image(pixels: np.ndarray, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture
def encode() -> Encode:
    return encode_image


@pytest.fixture
def pixels() -> Callable[..., np.ndarray]:
    """Random images: pixels(n, height, width, channels)."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.integers(0, 256, shape, dtype=np.uint8)
