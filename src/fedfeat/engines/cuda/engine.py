"""The fast engine for one NVIDIA GPU: a client's training step is captured once and replayed, on its own stream.

Images are gathered and augmented, the network is run forward and backward and SGD is applied inside one captured
graph; a device-side cursor walks through the epoch's plan, so replaying needs nothing from the host. As many
replicas of the model as pay train different clients at once. A batch smaller than the others is captured in its own
size, so BatchNorm sees exactly the samples that the in-process engine shows it. What a method binds to a client's
steps (teachers, anchors, control variates) is copied to where the captured step reads it; a method whose steps need
the host (synthetic batches drawn as they come) runs the in-process way, on the device.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.engine import Lost
from fedfeat.algorithm.method import Method
from fedfeat.algorithm.step import Work
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError, FedfeatError
from fedfeat.core.payload import SHARED, Payload, number_of
from fedfeat.data.dataset import Dataset
from fedfeat.engines.base import ROOM, FrozenNetworks, image_bytes
from fedfeat.engines.cuda.arithmetic import arithmetic
from fedfeat.engines.cuda.capture import STEPS_TO_CAPTURE, put_back, warmed_up
from fedfeat.engines.cuda.local_update import (
    LocalUpdate,
    Plans,
    interleave,
    longest_first,
    plan_replicas,
    stream_priority,
)
from fedfeat.engines.cuda.look_ahead import BATCHES
from fedfeat.engines.cuda.replica import Replica
from fedfeat.engines.cuda.roofline import flops_per_image, matrix_peak
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.models import Network, PretrainedBackbone
from fedfeat.scenario import Scenario

MOST_URGENT = -3  # PyTorch keeps streams of four priorities


class CudaEngine(InProcessEngine):
    """Clients at the speed of the GPU."""

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> None:
        super().__init__(config, dataset, scenario, method)
        if isinstance(self.network.backbone, PretrainedBackbone):
            raise ConfigError(
                "engine.name: cuda captures the steps of networks that are built in, not of pre-trained ones; set "
                "engine.name = 'inprocess', which runs on the GPU too"
            )
        precision = self.network.autocast or torch.float32
        self.arithmetic = arithmetic(config.engine.kernels, self.train_images, config.train.batch, precision)
        # What the server distils from, and copies of it that it trains, use the same kernels as clients.
        self._frozen = FrozenNetworks(lambda: self.arithmetic.prepare(self.new_network()), scenario)
        self.networks: list[Network] = []
        self.replicas: list[Replica] = []
        self.wanted: int | None = None
        self.at_once = 1  # clients trained at once in the last round
        self.bytes_each = 0  # what one replica was measured to need
        self.images_per_second = 0.0  # of the last round, while clients trained
        self.most_images_per_second = self._ceiling()
        self.planned: Plans = {}  # ahead of their round
        self._captured: bool | None = None
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # of the server's captured work
        self._latest: torch.cuda.CUDAGraph | None = None  # of that work: its memory is the next one's

    def has_room(self, dataset: Dataset) -> bool:
        """Return True; a device that is no GPU, or cannot keep all images, is refused."""
        need_gpu(self.device)
        need, free = image_bytes(dataset), torch.cuda.mem_get_info(self.device)[0]
        if need > ROOM * free:
            raise ConfigError(
                f"engine.name: cuda keeps all images on the GPU, and these need {need / 1e9:.1f} GB, more than half of "
                f"the {free / 1e9:.1f} GB that are free; use engine.name = 'inprocess', which feeds the GPU from disk "
                "batch by batch, or lower data.image_size"
            )
        return True

    def begin_task(self, task: int, weights: Tensor | None = None) -> Tensor:
        """Grow the heads; steps of the task are captured when its first clients arrive."""
        self.replicas.clear()
        self._latest = None
        gc.collect()  # captured steps give their memory back before this task's are planned
        torch.cuda.empty_cache()  # a capture could not fetch it
        self._captured = None
        self.planned.clear()
        return super().begin_task(task, weights)

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Train clients on replicas; every other op runs as it does in process."""
        if op != "train":
            if self.replicas:
                self.replicas[0].model.gradient.zero_()  # a replayed step leaves its own behind
            yield from super().ask(op, requests)
            return
        started, images = time.perf_counter(), 0.0
        for client_id, reply in self._train(requests):
            images += 0 if isinstance(reply, Lost) else number_of(reply, "samples") * self.config.train.local_epochs
            yield client_id, reply
        self.images_per_second = images / (time.perf_counter() - started)

    def client(self, client_id: int) -> Client:
        """Put a client together; between rounds it borrows the first replica, whose passes are captured."""
        client = super().client(client_id)
        if not self.replicas:
            return client
        return self.replicas[0].lent_to(client)

    def repeat(self, work: Work, touched: Sequence[Tensor]) -> Work:
        """Return the server's work on fixed tensors as a replay; what capturing does to those it touches is undone.

        A graph that is gone keeps its memory until the cache is emptied, which a capture that needs more cannot do. So
        generators, captured anew in every round of synthesis, take turns in one pool, on one stream.
        """
        pool = torch.cuda.graph_pool_handle() if self._latest is None else self._latest.pool()
        with put_back(touched):
            self._latest = warmed_up(work, pool, self._stream)
        return self._latest.replay

    def account(self) -> dict[str, Any]:
        """Return how the last round was run: clients at once, memory planned for each, share of the GPU's peak."""
        return {
            "clients_at_once": self.at_once,
            "bytes_per_client": self.bytes_each,
            "share_of_peak": self.images_per_second / self.most_images_per_second,
        }

    def _train(self, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        if self.vectorised.takes(requests):
            self.at_once = min(len(requests), self.vectorised.rows())
            yield from super().ask("train", requests)
            return
        busy = {k: samples for k in sorted(requests) if (samples := len(self.client(k).local_set))}
        if not busy or not self._can_capture(next(iter(busy)), requests, len(busy)):
            self.at_once = 1
            yield from super().ask("train", requests)
            return
        self.planned = {where: plan for where, plan in self.planned.items() if where[1] >= self.round}
        waiting = sorted(requests)
        while waiting:
            wave = waiting[: len(self.replicas)]
            before = {k: dict(self.states.get(k, {})) for k in wave}
            try:
                replies = self._train_wave(longest_first(wave, busy), requests)
            except torch.cuda.OutOfMemoryError:
                self.states |= {k: state for k, state in before.items() if k in self.states}
                self._drop_replica()
                continue
            waiting = waiting[len(wave) :]
            for client_id in wave:
                yield client_id, replies.get(client_id, {"samples": 0})

    def _train_wave(self, clients: list[int], requests: Mapping[int, Payload]) -> dict[int, Payload]:
        """Train one client per replica at once, the longest update on the stream of the highest priority."""
        updates = [self._update(r, k, requests[k]) for k, r in zip(clients, self.replicas, strict=False)]
        before = [dict(update.client.state) for update in updates]
        for update in updates:
            update.begin()
            update.replay(0)  # something to do for the GPU while the next update gets ready
        for number, step in interleave([u.sizes for u in updates]):
            if step:
                updates[number].replay(step)
        self.at_once = len(self.replicas)
        for update in updates:
            update.encode_ahead()
        for update in updates:
            update.plan_ahead()
        replies = {}
        # The shortest first: what it measures after training runs while the others still train.
        for update, earlier in reversed(list(zip(updates, before, strict=True))):
            replies[update.client.id] = update.finish()
            self.note_state(update.client.id, earlier, update.client.state)
        return replies

    def _update(self, replica: Replica, client_id: int, request: Payload) -> LocalUpdate:
        client = replace(replica.lent_to(self.client(client_id)), frozen=replica.frozen)
        request = {k: v for k, v in request.items() if not k.startswith(SHARED)}
        return LocalUpdate(replica, client, request, self.planned)

    def _can_capture(self, client_id: int, requests: Mapping[int, Payload], clients: int) -> bool:
        """Return whether this task's steps can be captured, and have replicas ready if so."""
        if self._captured is not False:
            self._make_replicas(client_id, requests, clients)
        return bool(self._captured)

    def _make_replicas(self, client_id: int, requests: Mapping[int, Payload], clients: int) -> None:
        """Add replicas for this task, as many as were planned.

        The first one tells whether the method's steps can be captured, and how much memory each replica needs.
        """
        while len(self.replicas) < (self.wanted or 1):
            before = torch.cuda.mem_get_info(self.device)[0]
            try:
                replica = self._new_replica()
                update = self._update(replica, client_id, requests[client_id])
                if self._captured is None:
                    self._captured = update.parts().capturable
                    if not self._captured:
                        return
                update.prepare()
                replica.graph(self.config.train.batch, update.kind)
                torch.cuda.empty_cache()  # what ran before the capture took memory that no other stream can use
            except torch.cuda.OutOfMemoryError:
                if not self.replicas:
                    raise FedfeatError(_too_small(self.config.train.batch)) from None
                torch.cuda.empty_cache()
                self.wanted = len(self.replicas)
                warnings.warn(f"engine cuda: memory allows {self.wanted} replicas only", stacklevel=2)
                return
            self.replicas.append(replica)
            if self.wanted is None:
                free = torch.cuda.mem_get_info(self.device)[0]
                self.bytes_each = max(before - free, 1)
                self.wanted = plan_replicas(self.config.engine.replicas, clients, free, self.bytes_each)

    def _new_replica(self) -> Replica:
        number = len(self.replicas)
        if number == len(self.networks):
            self.networks.append(self.arithmetic.prepare(self.new_network()))
        network = self.networks[number]
        for task in range(self.task + 1):
            if network.head.num_classes < self.scenario.seen_classes(task):
                network.head.grow(self.scenario.seen_classes(task), task)
        train = self.config.train
        look = BATCHES * train.batch  # may go beyond the last row of a plan
        capacity = max(self.largest_local_set() * train.local_epochs, STEPS_TO_CAPTURE * look) + look
        least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        return Replica(
            self, self.arithmetic, network, capacity, stream_priority(number, least, max(greatest, MOST_URGENT))
        )

    def _drop_replica(self) -> None:
        """Go on with one replica less after memory ran out."""
        if len(self.replicas) == 1:
            raise FedfeatError(_too_small(self.config.train.batch)) from None
        self.replicas.pop()
        self.networks.pop()
        self.wanted = len(self.replicas)
        torch.cuda.empty_cache()
        warnings.warn(f"engine cuda: memory ran out; going on with {self.wanted} replicas", stacklevel=2)

    def _ceiling(self) -> float:
        """Return the images per second that the GPU's matrix units alone would allow."""
        peak = matrix_peak(self.device, self.config.engine.precision)
        return peak / (3 * flops_per_image(self.network, self.dataset.image_shape))


def need_gpu(device: torch.device) -> None:
    """Refuse a device that is no NVIDIA GPU."""
    if device.type != "cuda":
        raise ConfigError(
            f"engine.name: cuda needs an NVIDIA GPU, and engine.device is {device}; use engine.name = inprocess here"
        )


def _too_small(batch: int) -> str:
    return f"engine cuda: the GPU has no memory for one replica at train.batch = {batch}; lower train.batch"
