"""A client's local training: the one op that every method shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedfeat.data.augment import draw_epoch
from fedfeat.draws import draw_at
from fedfeat.federation.client import Client
from fedfeat.federation.payload import Payload, tensor_of
from fedfeat.federation.privacy import protect
from fedfeat.federation.settings import TrainSettings
from fedfeat.methods.method import Look, Step
from fedfeat.models import FlatModel


def learning_rate(settings: TrainSettings, round: int) -> float:
    """Return the learning rate of a round (counted from 0) within its task."""
    if settings.schedule == "constant":
        return settings.lr
    cosine = 0.5 * (1 + math.cos(math.pi * round / settings.rounds))
    return settings.lr_min + (settings.lr - settings.lr_min) * cosine


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


def train(client: Client, request: Payload) -> Payload:
    """Train the received weights on the local set and return them with the method's statistics.

    A client without a sample returns no weights. The returned vector is the resident model's own: it is valid
    until the next client is asked.
    """
    local_set = client.local_set
    if len(local_set) == 0:
        return {"samples": 0}
    settings, method, model = client.config.train, client.method, client.model
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
        rng = draw_at(client.config.seed, "batches", client.task, client.round, client.id, epoch)
        draws = draw_epoch(rng, len(local_set), client.images.augmentation)
        order = local_set[draws.order.to(local_set.device)]
        for start in range(0, len(order), settings.batch):
            visited = slice(start, start + settings.batch)
            batch = client.batch = order[visited]
            step = take_step(client, client.images.augmented(batch, draws, visited), client.labels(batch), looks)
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


def take_step(client: Client, images: Tensor, labels: Tensor, looks: Sequence[Look] = ()) -> Step:
    """Run a batch forward and gather what loss terms see."""
    network = client.network
    levels: tuple[Tensor, ...] = ()
    if client.method.wants_levels:
        outputs, levels = network.with_levels(images)
    else:
        outputs = network(images)
    references = {key: value for look in looks for key, value in look(images).items()}
    return Step(
        features=outputs.features,
        logits=outputs.logits,
        labels=labels,
        num_old=client.num_old,
        num_classes=client.num_classes,
        num_prototypes=network.head.num_prototypes,
        references=references,
        levels=levels,
        network=network,
    )
