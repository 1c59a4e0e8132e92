"""A scenario with a seed of its own stays the same while the run's seed changes."""

from __future__ import annotations

import numpy as np
import pytest

from fedfeat.scenario import Scenario, ScenarioSettings, build_scenario

LABELS = np.repeat(np.arange(6), 20)


def built(run_seed: int, **settings: object) -> Scenario:
    return build_scenario(LABELS, 6, ScenarioSettings(tasks=3, clients=4, participation=2, **settings), run_seed)


def dealt(scenario: Scenario) -> list[object]:
    samples = [scenario.samples(t, k).tolist() for t in range(3) for k in range(4)]
    asked = [scenario.participants(t, r).tolist() for t in range(3) for r in range(5)]
    return [list(scenario.class_order), samples, asked]


@pytest.mark.parametrize("how", ["seeded", "legacy"])
def test_the_scenario_follows_its_own_seed(how: str) -> None:
    drawn = {"class_order": how, "partition_seed": "legacy" if how == "legacy" else "per_task"}
    assert dealt(built(1, seed=2023, **drawn)) == dealt(built(2, seed=2023, **drawn)) == dealt(built(2023, **drawn))
    assert dealt(built(1, **drawn)) != dealt(built(2, **drawn))
