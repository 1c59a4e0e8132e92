from __future__ import annotations

from collections.abc import Iterator

import pytest
import sklearn.datasets

from few_digits import few_digits


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Few digits: domains are followed or not, whatever there is to learn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", few_digits(sklearn.datasets.load_digits))
        yield
