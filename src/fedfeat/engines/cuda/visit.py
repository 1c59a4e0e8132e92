"""A client's visit to a replica: its weights and draws are loaded, steps are replayed, the reply is put together."""

from __future__ import annotations

import torch

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.settings import learning_rate
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.data.augment import EpochPlan, plan_epoch
from fedfeat.engines.cuda.parts import Kind, Parts, parts_of
from fedfeat.engines.cuda.plan import batch_sizes
from fedfeat.engines.cuda.replica import Replica
from fedfeat.federation.privacy import protect


class Visit:
    """One client's local training on a replica: begun, replayed step by step, finished."""

    def __init__(self, replica: Replica, client: Client, request: Payload) -> None:
        self.replica, self.client, self.request = replica, client, request
        train = client.settings
        self.samples = len(client.local_set)
        self.sizes = batch_sizes(self.samples, train.batch, train.local_epochs)
        self.steps_per_epoch = len(self.sizes) // train.local_epochs
        self.kind: Kind = ()

    def parts(self) -> Parts | None:
        """Return what the method adds to this client's steps, or None if that cannot be captured."""
        method, client, request = self.replica.engine.method, self.client, self.request
        looks = [look for r in method.references if (look := r.start(client, request)) is not None]
        pushes = {p.name: push for p in method.penalties if (push := p.start(client, request)) is not None}
        return parts_of(looks, pushes, [s.start(client, request) for s in method.statistics])

    def prepare(self) -> None:
        """Load the weights and what the method adds to the steps."""
        replica = self.replica
        replica.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(replica.stream):
            replica.load(tensor_of(self.request, "weights"))
            parts = self.parts()
            assert parts is not None, "a method whose steps cannot be captured is trained in process"
            self.kind = replica.bind(parts)

    def begin(self) -> None:
        """Get ready to replay: capture steps that are new, load the draws of all epochs."""
        self.prepare()
        replica, client = self.replica, self.client
        with torch.cuda.stream(replica.stream):
            for size in sorted(set(self.sizes), reverse=True):
                replica.graph(size, self.kind)
            replica.cursor.zero_()
            replica.epoch.zero_()
            replica.sums.zero_()
            replica.lr.fill_(learning_rate(client.settings, client.round))
            for epoch in range(client.settings.local_epochs):
                self._load_draws(epoch)

    def encode_ahead(self) -> None:
        """Launch what the client looks at after its last step: its visit need not end before others look at theirs."""
        client, replica = self.client, self.replica
        if not self.replica.engine.method.encodes_exemplars or not client.num_old:
            return
        with torch.no_grad(), torch.cuda.stream(replica.stream):
            exemplars = client.trained_exemplars  # worked out on the stream that reads them
            if len(exemplars):
                replica.network.eval()
                replica.encode_ahead(exemplars)

    def draw_ahead(self) -> None:
        """Draw this client's next round now, while the card is busy with this one."""
        client = self.client
        if client.round + 1 < client.settings.rounds:
            for epoch in range(client.settings.local_epochs):
                self.replica.engine.drawn[client.id, client.round + 1, epoch] = self._draw(client.round + 1, epoch)

    def _draw(self, round: int, epoch: int) -> EpochPlan:
        client = self.client
        rng = rng_at(client.seed, "batches", client.task, round, client.id, epoch)
        return plan_epoch(rng, self.samples, client.images.augmentation)

    def _load_draws(self, epoch: int) -> None:
        replica, client = self.replica, self.client
        ready = replica.engine.drawn.pop((client.id, client.round, epoch), None)
        draws = ready or self._draw(client.round, epoch)
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
            self.replica.graphs[self.sizes[step], self.kind].replay()

    def finish(self) -> Payload:
        """Return the reply; its vector is the replica's own, valid until the replica is used again."""
        replica, client = self.replica, self.client
        parts = replica.parts[self.kind]
        reply: Payload = {"weights": replica.model.vector, "samples": self.samples}
        with torch.cuda.stream(replica.stream):
            for statistic, buffers in zip(self.replica.engine.method.statistics, parts.buffers, strict=True):
                reply.update(statistic.finish(client, buffers))
            protect(reply, self.request, client)
            means = (replica.sums / self.samples).tolist()
        torch.cuda.current_stream().wait_stream(replica.stream)
        names = [*(term.name for term in replica.terms), *(name for name, _ in parts.pushes)]
        reply |= {f"loss.{name}": means[-1][column] for column, name in enumerate(names)}
        reply["loss.first_epoch"] = sum(means[0])
        return reply
