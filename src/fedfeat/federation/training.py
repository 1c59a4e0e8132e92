"""A client's local training: the one op that every method shares."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method
from fedfeat.algorithm.settings import learning_rate
from fedfeat.algorithm.step import take_step
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.data.augment import plan_epoch
from fedfeat.federation.privacy import protect
from fedfeat.models import FlatModel


class FlatSGD:
    """SGD with momentum and weight decay on a flat model: three operations, however many layers there are."""

    def __init__(
        self, model: FlatModel, *, lr: float, momentum: float, weight_decay: float, grad_clip: float | None = None
    ) -> None:
        self.model = model
        self.lr, self.momentum, self.weight_decay, self.grad_clip = lr, momentum, weight_decay, grad_clip
        self.velocity: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        """Apply and clear the gradient."""
        weights, gradient = self.model.weights, self.model.gradient
        if self.grad_clip is not None:
            gradient.mul_((self.grad_clip / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0))
        gradient.add_(weights, alpha=self.weight_decay)
        if self.velocity is None:
            self.velocity = gradient.clone()
        else:
            self.velocity.mul_(self.momentum).add_(gradient)
        weights.add_(self.velocity, alpha=-self.lr)
        gradient.zero_()


class LocalTraining:
    """The op ``train`` of a method."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def __call__(self, client: Client, request: Payload) -> Payload:
        """Train one client."""
        return train(client, request, self.method)


def train(client: Client, request: Payload, method: Method) -> Payload:
    """Train the received weights on the local set and return them with the method's statistics.

    A client without a sample returns no weights. The returned vector is the resident model's own: it is valid
    until the next client is asked.
    """
    local_set = client.local_set
    if len(local_set) == 0:
        return {"samples": 0}
    settings, model = client.settings, client.model
    model.load(tensor_of(request, "weights"))
    optimiser = FlatSGD(
        model,
        lr=learning_rate(settings, client.round),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        grad_clip=method.grad_clip,
    )
    terms = method.active_terms(client.task)
    looks = [look for r in method.references if (look := r.start(client, request)) is not None]
    pushes = [(p.name, push) for p in method.penalties if (push := p.start(client, request)) is not None]
    buffers = [s.start(client, request) for s in method.statistics]
    names = [*(t.name for t in terms), *(name for name, _ in pushes)]
    sums = torch.zeros(settings.local_epochs, len(names), device=client.device)
    client.network.train()
    for epoch in range(settings.local_epochs):
        rng = rng_at(client.seed, "batches", client.task, client.round, client.id, epoch)
        draws = plan_epoch(rng, len(local_set), client.images.augmentation)
        order = local_set[draws.order.to(local_set.device)]
        for start in range(0, len(order), settings.batch):
            visited = slice(start, start + settings.batch)
            batch = client.batch = order[visited]
            images = client.images.augmented(batch, draws, visited)
            step = take_step(
                client.network,
                images,
                client.labels(batch),
                client.seen,
                references=looks,
                wants_intermediate=method.wants_intermediate,
            )
            losses = torch.stack([term.weight * term.function(step) for term in terms])
            losses.sum().backward()  # type: ignore[no-untyped-call]
            pulls = [push(model.weights, model.gradient) for _, push in pushes]
            optimiser.step()
            sums[epoch].add_(torch.cat([losses.detach(), *(p.detach().view(1) for p in pulls)]), alpha=len(batch))
            for statistic, buffer in zip(method.statistics, buffers, strict=True):
                statistic.update(client.network, step, buffer)
    reply: Payload = {"weights": model.vector, "samples": len(local_set)}
    for statistic, buffer in zip(method.statistics, buffers, strict=True):
        reply.update(statistic.finish(client, buffer))
    means = (sums / len(local_set)).tolist()
    reply |= {f"loss.{name}": means[-1][column] for column, name in enumerate(names)}
    reply["loss.first_epoch"] = sum(means[0])
    return protect(reply, request, client)
