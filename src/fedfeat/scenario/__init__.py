"""Who sees what, and when: class order, task split, partition, participation, exemplar quotas."""

from fedfeat.scenario.build import build_scenario
from fedfeat.scenario.scenario import Scenario
from fedfeat.scenario.settings import ScenarioSettings

__all__ = ["Scenario", "ScenarioSettings", "build_scenario"]
