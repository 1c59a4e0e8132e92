"""A client's local update on a replica: weights and plans are loaded, steps are replayed, the reply is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import ActiveParts
from fedfeat.algorithm.settings import learning_rate
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.data.augment import EpochPlan
from fedfeat.engines.cuda.look_ahead import LookAhead
from fedfeat.engines.cuda.replica import Kind, Replica
from fedfeat.federation.training import plan_batches, training_reply

Plans = dict[tuple[int, int, int], EpochPlan]  # by client, round and epoch


class LocalUpdate:
    """One client's local training on a replica: begun, replayed step by step, finished."""

    def __init__(self, replica: Replica, client: Client, request: Payload, planned: Plans) -> None:
        self.replica, self.client, self.request, self.planned = replica, client, request, planned
        train = client.settings
        self.samples = len(client.local_set)
        self.sizes = batch_sizes(self.samples, train.batch, train.local_epochs)
        self.steps_per_epoch = len(self.sizes) // train.local_epochs
        self.kind: Kind = ()
        self.look: LookAhead | None = None
        self.launched = 0  # rows of the plan

    def parts(self) -> ActiveParts:
        """Start the method's parts on this client."""
        return ActiveParts.start(self.replica.method, self.client, self.request)

    def prepare(self) -> None:
        """Load the weights and what the method adds to the steps."""
        replica = self.replica
        replica.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(replica.stream):
            replica.load(tensor_of(self.request, "weights"))
            parts = self.parts()
            assert parts.capturable, "a method whose steps cannot be captured is trained in process"
            self.kind = replica.bind(parts)

    def begin(self) -> None:
        """Get ready to replay: capture steps that are new, load the plans of all epochs."""
        self.prepare()
        replica, client = self.replica, self.client
        with torch.cuda.stream(replica.stream):
            for size in sorted(set(self.sizes), reverse=True):
                replica.graph(size, self.kind)
            self.look = replica.look_ahead(self.kind)
            if self.look is not None:
                self.look.rewind()
            replica.cursor.zero_()
            replica.epoch.zero_()
            replica.sums.zero_()
            replica.lr.fill_(learning_rate(client.settings, client.round))
            for epoch in range(client.settings.local_epochs):
                self._load_plan(epoch)

    def encode_ahead(self) -> None:
        """Launch what the client encodes after its last step, before others have ended theirs."""
        client, replica = self.client, self.replica
        if not self.replica.method.encodes_exemplars or not client.num_old:
            return
        with torch.no_grad(), torch.cuda.stream(replica.stream):
            exemplars = client.trained_exemplars  # worked out on the stream that reads them
            if len(exemplars):
                replica.network.eval()
                replica.encode_ahead(exemplars)

    def plan_ahead(self) -> None:
        """Plan this client's next round now, while the GPU is busy with this one."""
        client = self.client
        if client.round + 1 < client.settings.rounds:
            for epoch in range(client.settings.local_epochs):
                plan = plan_batches(client, epoch, client.round + 1)
                self.planned[client.id, client.round + 1, epoch] = plan

    def _load_plan(self, epoch: int) -> None:
        replica, client = self.replica, self.client
        plan = self.planned.pop((client.id, client.round, epoch), None) or plan_batches(client, epoch)
        part = slice(epoch * self.samples, (epoch + 1) * self.samples)
        replica.order[part] = client.local_set[plan.order.to(client.device, non_blocking=True)]
        replica.crops[part] = plan.crops.to(client.device, non_blocking=True)
        replica.flips[part] = plan.flips.to(client.device, non_blocking=True)
        replica.brightness[part] = plan.brightness.to(client.device, non_blocking=True)
        replica.changes[part] = plan.changes.to(client.device, non_blocking=True)

    def replay(self, step: int) -> None:
        """Launch one step; the host does not wait for it."""
        with torch.cuda.stream(self.replica.stream):
            if step and step % self.steps_per_epoch == 0:
                self.replica.epoch += 1
            self.launched += self.sizes[step]
            if self.look is not None:
                self.look.reach(self.launched, sum(self.sizes))
            self.replica.graphs[self.sizes[step], self.kind].replay()

    def finish(self) -> Payload:
        """Return the reply; its vector is the replica's own, valid until the replica is used again."""
        replica = self.replica
        terms = [term.name for term in replica.terms]
        with torch.cuda.stream(replica.stream):
            reply = training_reply(
                self.client, self.request, replica.parts[self.kind], replica.model.vector, terms, replica.sums
            )
        torch.cuda.current_stream().wait_stream(replica.stream)
        return reply


MOST_REPLICAS = 6  # more streams than this brought nothing on the GPUs measured


def plan_replicas(wanted: int, clients: int, free_bytes: int, bytes_each: int, *, reserve: float = 0.1) -> int:
    """Return how many replicas to run: as many as take part in a round, as memory allows, at least one.

    :param wanted: the user's choice, 0 for ours.
    :param bytes_each: what the first replica was measured to need.
    """
    most = wanted or min(clients, MOST_REPLICAS)
    fit = int(free_bytes * (1 - reserve)) // max(bytes_each, 1)
    return max(1, min(most, clients, 1 + fit))


def longest_first(clients: Sequence[int], samples: Mapping[int, int]) -> list[int]:
    """Return the clients that have samples, those with most first; among equals the lower id."""
    return sorted((k for k in clients if samples.get(k)), key=lambda k: (-samples[k], k))


def stream_priority(number: int, least: int, greatest: int) -> int:
    """Return the priority of a replica's stream: the first replica, which gets the longest update, has the greatest.

    In CUDA smaller numbers go first: ``greatest`` is at most ``least``.
    """
    return min(greatest + number, least)


def batch_sizes(samples: int, batch: int, epochs: int) -> list[int]:
    """Return the sizes of an update's batches in order: full ones, then each epoch's remainder."""
    full, rest = divmod(samples, batch)
    return ([batch] * full + ([rest] if rest else [])) * epochs


def interleave(plans: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return (replica, step) in the order of launching: each plan evenly over the whole, so that all end together."""
    steps = ((replica, step) for replica, plan in enumerate(plans) for step in range(len(plan)))
    return sorted(steps, key=lambda launch: ((launch[1] + 0.5) / len(plans[launch[0]]), launch))
