"""The reference engine: clients one after another, or many small ones at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedfeat.algorithm.engine import Lost
from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.core.payload import Payload
from fedfeat.data.dataset import Dataset
from fedfeat.engines.base import BaseEngine
from fedfeat.engines.vectorised import VectorisedClients
from fedfeat.scenario import Scenario


class InProcessEngine(BaseEngine):
    """Clients in this process, on any device."""

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> None:
        super().__init__(config, dataset, scenario, method)
        self.vectorised = VectorisedClients(self)

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Run an op on each client, training at once the many small ones for which that pays."""
        if op == "train" and self.vectorised.takes(requests):
            yield from self.vectorised.train(requests)
        else:
            yield from super().ask(op, requests)
