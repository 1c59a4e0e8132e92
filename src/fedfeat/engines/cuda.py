"""The fast engine for one NVIDIA GPU: a client's training step is captured once and replayed, on its own stream.

Images are gathered and augmented, the network is run forward and backward and SGD is applied inside one captured
graph; a device-side cursor walks through the epoch's draws, so replaying needs nothing from the host. As many
replicas of the model as pay train different clients at once. A batch smaller than the others is captured in its own
size, so BatchNorm sees exactly the samples that the in-process engine shows it. Methods whose step refers to
something that changes with the client (teachers, penalties) run the in-process way, on the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedfeat.config import Config
from fedfeat.data.dataset import Dataset
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.engines.plan import interleave, plan_replicas
from fedfeat.engines.replica import Forward, Replica, Transform, Visit
from fedfeat.errors import ConfigError
from fedfeat.federation.payload import SHARED, Payload
from fedfeat.methods.method import Method
from fedfeat.models import Network
from fedfeat.scenario import Scenario


class CudaEngine(InProcessEngine):
    """Clients at the speed of the card."""

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> None:
        super().__init__(config, dataset, scenario, method)
        if self.device.type != "cuda":
            raise ConfigError(
                f"engine.name: cuda needs an NVIDIA GPU, and engine.device is {self.device}; "
                "use engine.name = inprocess here"
            )
        self.networks: list[Network] = []
        self.replicas: list[Replica] = []
        self.wanted: int | None = None
        self._compiled: Forward | None = None
        self._transform: Transform | None = None

    @property
    def captured(self) -> bool:
        """Whether the method's step is the same for every client and can be captured."""
        method = self.method
        return not (method.references or method.penalties or any(s.per_step for s in method.statistics))

    def begin_task(self, task: int, weights: Tensor | None = None) -> Tensor:
        """Grow the heads; steps of the task are captured when its first clients arrive."""
        self.replicas.clear()
        return super().begin_task(task, weights)

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Train clients on replicas; every other op runs as it does in process."""
        if op != "train" or not self.captured:
            yield from super().ask(op, requests)
            return
        self._make_replicas(len(requests))
        for wave in _waves(sorted(requests), len(self.replicas)):
            yield from self._train(wave, requests)

    def _train(self, wave: tuple[int, ...], requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        visits: dict[int, Visit] = {}
        for client_id, replica in zip(wave, self.replicas, strict=False):
            client = replace(self.client(client_id), model=replica.model, encode=replica.encode)
            request = {k: v for k, v in requests[client_id].items() if not k.startswith(SHARED)}
            if len(client.local_set):
                visits[client_id] = Visit(replica, client, request)
        for visit in visits.values():
            visit.begin()
        queue = list(visits.values())
        for number, step in interleave([v.sizes for v in queue]):
            queue[number].replay(step)
        for client_id in wave:
            before = dict(self.states.get(client_id, {}))
            reply: Payload = visits[client_id].finish() if client_id in visits else {"samples": 0}
            if client_id in visits:
                self._note_state(client_id, before, visits[client_id].client.state)
            yield client_id, reply

    def _make_replicas(self, clients: int) -> None:
        """Add replicas for this task, as many as were planned; the first one tells how much memory each needs."""
        capacity = self._largest_local_set() * self.config.train.local_epochs
        while len(self.replicas) < (self.wanted or 1):
            number = len(self.replicas)
            if number == len(self.networks):
                self.networks.append(_without_counters(self._new_network()))
            network = self.networks[number]
            for task in range(self.task + 1):
                if network.head.num_classes < self.scenario.seen_classes(task):
                    network.head.grow(self.scenario.seen_classes(task), task)
            before = torch.cuda.mem_get_info(self.device)[0]
            try:
                replica = Replica(self, network, capacity)
                replica.graph(self.config.train.batch)
            except torch.cuda.OutOfMemoryError:
                if not self.replicas:
                    raise
                torch.cuda.empty_cache()
                self.wanted = len(self.replicas)
                warnings.warn(f"engine cuda: memory allows {self.wanted} replicas only", stacklevel=2)
                return
            self.replicas.append(replica)
            if self.wanted is None:
                free = torch.cuda.mem_get_info(self.device)[0]
                self.wanted = plan_replicas(self.config.engine.replicas, clients, free, before - free)

    def _largest_local_set(self) -> int:
        largest = 0
        sizes = self.scenario.splits[self.task].sizes
        for client in self.scenario.present(self.task):
            kept = self.states.get(int(client), {}).get("exemplars")
            largest = max(largest, int(sizes[client]) + (len(kept) if isinstance(kept, Tensor) else 0))
        return max(largest, 1)

    def transform_of(self, *, compiled: bool) -> Transform:
        """Return the augmentation; compiled, it is a single kernel from bytes to normalised images."""
        if not (compiled and self.config.engine.compile):
            return self.train_images.transformed
        if self._transform is None:
            self._transform = torch.compile(self.train_images.transformed, fullgraph=True, dynamic=False)
        return self._transform

    def forward_of(self, network: Network, *, compiled: bool) -> Forward:
        """Return the backbone as a function of its parameters; compiled once for all replicas."""
        buffers = dict(network.backbone.named_buffers())

        def plain(parameters: dict[str, Tensor], images: Tensor) -> Tensor:
            pooled: Tensor = torch.func.functional_call(network.backbone, {**parameters, **buffers}, (images,))
            return pooled

        if not (compiled and self.config.engine.compile):
            return plain
        if self._compiled is None:
            template = network.backbone

            def run(values: dict[str, Tensor], images: Tensor) -> Tensor:
                pooled: Tensor = torch.func.functional_call(template, values, (images,))
                return pooled

            self._compiled = torch.compile(run, fullgraph=True, dynamic=False)
        compiled_run = self._compiled
        return lambda parameters, images: compiled_run({**parameters, **buffers}, images)


def _waves(clients: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(clients[i : i + size]) for i in range(0, len(clients), size)]


def _without_counters(network: Network) -> Network:
    """Drop BatchNorm's batch counters, which nothing reads: one small kernel less per layer and step."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None
    return network
