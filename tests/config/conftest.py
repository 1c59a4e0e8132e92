from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedfeat.config import plugins
from fedfeat.methods import PARTS


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """A plugin stays registered as long as the process lives; other tests must not notice."""
    kept = [(table, dict(table)) for table in (PARTS, plugins._contents, plugins._files, plugins._packages)]
    yield
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]
