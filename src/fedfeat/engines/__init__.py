"""How clients are run."""

from __future__ import annotations

from fedfeat.config import Config
from fedfeat.data.dataset import Dataset
from fedfeat.engines.cuda import CudaEngine
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.methods.method import Method
from fedfeat.scenario import Scenario


def make_engine(config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> InProcessEngine:
    """Return the engine that the configuration asks for."""
    kind = CudaEngine if config.engine.name == "cuda" else InProcessEngine
    return kind(config, dataset, scenario, method)


__all__ = ["CudaEngine", "InProcessEngine", "make_engine"]
