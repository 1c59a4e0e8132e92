"""The pictures of FEAT's components show what the library computes, and stand on their pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from documents import ROOT

from reference_pages.captions import CAPTIONS, FOLDER, picture
from reference_pages.pictures import PICTURES, corrected_prediction, sphere_features

MOST_BYTES = 150_000


def test_every_picture_is_drawn_small_and_shown() -> None:
    assert set(PICTURES) == set(CAPTIONS)
    for name in CAPTIONS:
        file = ROOT / "docs" / FOLDER / f"{name}.png"
        assert file.stat().st_size < MOST_BYTES
        assert picture(name) in (ROOT / "docs" / "pieces.md").read_text()
        assert picture(name, "../") in (ROOT / "docs" / "methods" / f"{name}.md").read_text()


@pytest.fixture
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.mark.docs
def test_features_go_to_prototypes_that_lie_120_degrees_apart(in_the_root: Path) -> None:
    prototypes, features, labels = sphere_features(4)
    np.testing.assert_allclose(prototypes @ prototypes.T, 1.5 * np.eye(3) - 0.5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)
    assert (features @ prototypes.T)[np.arange(len(labels)), labels].mean() > 0.8


@pytest.mark.docs
def test_the_corrected_prediction_is_what_the_formula_says(in_the_root: Path) -> None:
    one = corrected_prediction()
    assert one.gate == pytest.approx((one.head - one.prior) / (one.head + one.tail), abs=1e-6)
    assert one.before.argmax() >= 5
    assert one.after.argmax() == one.label < 5
    np.testing.assert_allclose(one.before.sum(), 0, atol=1e-5)  # an ETF sums to zero, and so do its cosines
    assert str(one.label) in CAPTIONS["egc"].shows
