"""The engine that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable

from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError
from fedfeat.data.dataset import Dataset
from fedfeat.engines.cuda.engine import CudaEngine
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.scenario import Scenario

EngineFactory = Callable[[Config, Dataset, Scenario, Method], InProcessEngine]


def make_engine(config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> InProcessEngine:
    """Return the engine that the configuration asks for."""
    if config.engine.name == "flower" or dataset.private:
        raise ConfigError(
            "engine.name: clients of engine flower, and those that own their data, are processes of their own; run "
            "this configuration with 'fedfeat federate' on one machine, or with 'fedfeat server' and 'fedfeat client'"
        )
    kind = CudaEngine if config.engine.name == "cuda" else InProcessEngine
    return kind(config, dataset, scenario, method)
