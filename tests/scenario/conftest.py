import numpy as np
import pytest

from fedfeat.scenario import Scenario, ScenarioSettings, build_scenario

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture(scope="session")
def make():
    """Build a scenario over ten classes of ``per_class`` interleaved samples each."""

    def build(seed: int = 7, per_class: int = 200, **settings) -> Scenario:
        labels = np.tile(np.arange(10), per_class)
        return build_scenario(labels, 10, ScenarioSettings(**settings), seed)

    return build


@pytest.fixture(scope="session")
def names() -> list[str]:
    return NAMES
