from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedfeat.algorithm import registry


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """Blocks may register methods and draw random numbers; other tests must not notice."""
    parts, state = dict(registry.PARTS), torch.get_rng_state()
    yield
    registry.PARTS.clear()
    registry.PARTS.update(parts)
    torch.set_rng_state(state)
