"""One copy of the model on its own stream with its captured steps, and a client's visit to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.data.augment import draw_epoch
from fedfeat.draws import draw_at
from fedfeat.engines.plan import batch_sizes
from fedfeat.federation.client import Client
from fedfeat.federation.local import learning_rate
from fedfeat.federation.payload import Payload, tensor_of
from fedfeat.methods.method import Seen, Step
from fedfeat.models import FlatModel, Network

if TYPE_CHECKING:
    from fedfeat.engines.cuda import CudaEngine

Forward = Callable[[dict[str, Tensor], Tensor], Tensor]
Transform = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
EVAL_BATCH = 256


class Replica:
    """One copy of the model on its own stream, with its captured steps and the buffers they read."""

    def __init__(self, engine: CudaEngine, network: Network, capacity: int) -> None:
        self.engine = engine
        self.config = engine.config
        self.images = engine.train_images
        self.stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self.network = network
        self.seen: Seen = engine.seen
        self.terms = engine.method.active_terms(engine.task)
        self.model = FlatModel(network)
        self.parameters = self.model.parameters
        self.velocity = torch.zeros_like(self.model.weights)
        self.velocities = self.model.views(self.velocity)
        device, epochs = engine.device, self.config.train.local_epochs
        self.lr = torch.zeros((), device=device)
        self.cursor = torch.zeros((), dtype=torch.long, device=device)
        # Until a client's draws are loaded, point at a sample of the current task: capturing runs on it.
        valid = int(engine.scenario.splits[engine.task].indices[0])
        self.order = torch.full((capacity,), valid, dtype=torch.long, device=device)
        self.crops = torch.zeros(capacity, 2, dtype=torch.long, device=device)
        self.flips = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.brightness = torch.ones(capacity, device=device)
        self.sums = torch.zeros(epochs, len(self.terms), device=device)
        self.epoch = torch.zeros((), dtype=torch.long, device=device)
        self.to_encode = torch.zeros(EVAL_BATCH, dtype=torch.long, device=device)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.encoder: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def step(self, size: int, forward: Forward, transform: Transform) -> None:
        """Train on the next ``size`` samples of the epoch; this is what gets captured."""
        rows = self.cursor + torch.arange(size, device=self.cursor.device)
        indices = self.order[rows]
        images = transform(indices, self.crops[rows], self.flips[rows], self.brightness[rows])
        losses = self._losses(images, self.images.labels[indices], forward)
        gradients = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)
        self._descend(gradients)
        self.sums.index_add_(0, self.epoch.view(1), (losses.detach() * size)[None])
        self.cursor += size

    def _losses(self, images: Tensor, labels: Tensor, forward: Forward) -> Tensor:
        network, method, seen = self.network, self.engine.method, self.seen
        levels: tuple[Tensor, ...] = ()
        if method.wants_levels:
            outputs, levels = network.with_levels(images)
            features, logits = outputs
        else:
            with network.reduced_precision(images):
                pooled = forward(dict(network.backbone.named_parameters()), images)
            features = network.head.feature(pooled.float())
            logits = network.head(features)
        frame = network.head.num_prototypes
        step = Step(features, logits, labels, seen.num_old, seen.num_classes, frame, {}, levels, network)
        return torch.stack([term.weight * term.function(step) for term in self.terms])

    def _descend(self, gradients: Sequence[Tensor | None]) -> None:
        settings, clip = self.config.train, self.engine.method.grad_clip
        # The kernel below walks through memory, so each gradient must lie as its parameter does.
        aligned = [_lying_like(p, g) for p, g in zip(self.parameters, gradients, strict=True)]
        if clip is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(aligned)))
            torch._foreach_mul_(aligned, (clip / (norm + 1e-6)).clamp(max=1.0))
        # The kernel behind torch.optim.SGD(fused=True): one pass over weights, gradient and velocity.
        torch._fused_sgd_(
            [p.detach() for p in self.parameters],
            aligned,
            self.velocities,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def graph(self, size: int) -> torch.cuda.CUDAGraph:
        """Return the captured step for a batch size, capturing it on first use."""
        if size not in self.graphs:
            # The full batch is compiled; a remainder of each size would pay for its compilation too seldom.
            compiled = size == self.config.train.batch
            forward = self.engine.forward_of(self.network, compiled=compiled)
            transform = self.engine.transform_of(compiled=compiled)
            self.network.train()
            saved = self.model.vector.clone(), self.cursor.clone(), self.sums.clone(), self.velocity.clone()
            self.graphs[size] = self._capture(lambda: self.step(size, forward, transform))
            for buffer, value in zip((self.model.vector, self.cursor, self.sums, self.velocity), saved, strict=True):
                buffer.copy_(value)
        return self.graphs[size]

    def encode(self, indices: Tensor) -> Tensor:
        """Return features in evaluation mode; padding is exact there, so one captured size serves all."""
        if self.encoder is None:
            self.network.eval()
            out: list[Tensor] = []

            def run() -> None:
                out[:] = [self.network.features(self.images.plain(self.to_encode))]

            with torch.no_grad():
                self.encoder = (self._capture(run), out[0])
        graph, features = self.encoder
        parts = []
        for part in torch.split(indices, EVAL_BATCH):
            self.to_encode[: len(part)].copy_(part)
            graph.replay()
            parts.append(features[: len(part)].clone())
        return torch.cat(parts)

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                work()  # libraries choose their kernels and allocate their workspaces before capture
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            work()
        torch.cuda.synchronize()
        return graph


class Visit:
    """One client's local training on a replica: begun, replayed step by step, finished."""

    def __init__(self, replica: Replica, client: Client, request: Payload) -> None:
        self.replica, self.client, self.request = replica, client, request
        train = client.config.train
        self.samples = len(client.local_set)
        self.sizes = batch_sizes(self.samples, train.batch, train.local_epochs)
        self.steps_per_epoch = len(self.sizes) // train.local_epochs

    def begin(self) -> None:
        """Load the weights and the draws of all epochs."""
        replica, client = self.replica, self.client
        for size in sorted(set(self.sizes), reverse=True):
            replica.graph(size)
        replica.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(replica.stream):
            replica.model.load(tensor_of(self.request, "weights"))
            replica.velocity.zero_()
            replica.cursor.zero_()
            replica.epoch.zero_()
            replica.sums.zero_()
            replica.lr.fill_(learning_rate(client.config.train, client.round))
            for epoch in range(client.config.train.local_epochs):
                self._load_draws(epoch)

    def _load_draws(self, epoch: int) -> None:
        replica, client = self.replica, self.client
        rng = draw_at(client.config.seed, "batches", client.task, client.round, client.id, epoch)
        draws = draw_epoch(rng, self.samples, client.images.augmentation)
        part = slice(epoch * self.samples, (epoch + 1) * self.samples)
        replica.order[part] = client.local_set[draws.order.to(client.device, non_blocking=True)]
        replica.crops[part] = draws.crops.to(client.device, non_blocking=True)
        replica.flips[part] = draws.flips.to(client.device, non_blocking=True)
        replica.brightness[part] = draws.brightness.to(client.device, non_blocking=True)

    def replay(self, step: int) -> None:
        """Launch one step; the host does not wait for it."""
        with torch.cuda.stream(self.replica.stream):
            if step and step % self.steps_per_epoch == 0:
                self.replica.epoch += 1
            self.replica.graphs[self.sizes[step]].replay()

    def finish(self) -> Payload:
        """Return the reply; its vector is the replica's own, valid until the replica is used again."""
        replica, client, method = self.replica, self.client, self.client.method
        reply: Payload = {"weights": replica.model.vector, "samples": self.samples}
        with torch.cuda.stream(replica.stream):
            for statistic in method.statistics:
                reply.update(statistic.finish(client, statistic.start(client, self.request)))
            means = (replica.sums / self.samples).tolist()
        torch.cuda.current_stream().wait_stream(replica.stream)
        reply |= {f"loss.{term.name}": means[-1][column] for column, term in enumerate(replica.terms)}
        reply["loss.first_epoch"] = sum(means[0])
        return reply


def _lying_like(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    """Return a gradient in its parameter's memory layout; zeros for a parameter that the loss does not touch."""
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
