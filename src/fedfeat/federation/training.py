"""A client's local training: THE training step, the plain loop over it, and the reply at its end.

Every engine trains with :func:`train_step` and answers with :func:`training_reply`. Engines differ in where tensors
lie, in how the gradient moves the weights, and in how the work is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import ActiveParts, Method
from fedfeat.algorithm.settings import TrainSettings, learning_rate
from fedfeat.algorithm.step import Objective, References, Step
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.data.augment import EpochPlan, plan_epoch
from fedfeat.data.paste import plan_pastes
from fedfeat.federation.privacy import protect

# (images, labels, references) -> the step if statistics want to see it, and the losses [..., terms].
LossFunction = Callable[[Tensor, Tensor, References], tuple[Step | None, Tensor]]
Descent = Callable[[Sequence[Tensor | None]], list[Tensor]]  # moves the weights, returns values of penalties


def train_step(
    images: Tensor,
    labels: Tensor,
    *,
    loss: LossFunction,
    leaves: Sequence[Tensor],
    descend: Descent,
    parts: ActiveParts,
) -> Tensor:
    """Take one step of local training and return the value of every loss term and penalty.

    Nothing here waits for the device or branches on a tensor's value, so an engine may capture it.
    """
    # 1. The loss, with what the method compares the batch to (a frozen model, a synthetic batch), and its gradient.
    step, losses = loss(images, labels, parts.references)
    gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
    with torch.no_grad():
        # 2. Penalties add to the gradient, SGD moves the weights.
        penalties = descend(gradients)
        # 3. Statistics see the step.
        if step is not None:
            parts.observe(step)
        return torch.cat([losses.detach(), *penalties], dim=-1)


def clip_norm(gradient: Tensor, clip: float | None) -> None:
    """Scale a gradient, or each row of a stack, down to a norm of at most ``clip``."""
    if clip is not None:
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        gradient.mul_((clip / (norm + 1e-6)).clamp(max=1.0))


@torch.no_grad()
def sgd(
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    *,
    lr: float | Tensor,
    momentum: float,
    weight_decay: float,
    clip: float | None = None,
) -> None:
    """Apply SGD with momentum and weight decay in place, to one vector or to each row of a stack."""
    clip_norm(gradient, clip)
    gradient.add_(weights, alpha=weight_decay)
    velocity.mul_(momentum).add_(gradient)
    if isinstance(lr, Tensor):
        weights.addcmul_(velocity, lr, value=-1.0)
    else:
        weights.add_(velocity, alpha=-lr)


def plan_batches(client: Client, epoch: int, round: int | None = None) -> EpochPlan:
    """Return the order and the augmentation of one epoch of local training."""
    round = client.round if round is None else round
    where = client.task, round, client.id, epoch
    plan = plan_epoch(rng_at(client.seed, "batches", *where), len(client.local_set), client.images.augmentation)
    if not client.settings.paste:
        return plan
    replayed = plan.order.numpy() >= len(client.local_set) - client.settings.repeat_exemplars * len(
        client.trained_exemplars
    )
    pastes = plan_pastes(rng_at(client.seed, "paste", *where), replayed, client.settings.paste)
    return plan._replace(changes=torch.cat([pastes, plan.changes], dim=1))


def training_reply(
    client: Client, request: Payload, parts: ActiveParts, vector: Tensor, terms: Sequence[str], sums: Tensor
) -> Payload:
    """Return what a client answers after its last step.

    :param terms: names of the loss terms.
    :param sums: [epochs, terms and penalties], each value times the size of its batch.
    """
    samples = len(client.local_set)
    reply: Payload = {"weights": vector, "samples": samples, **parts.finish(client)}
    protect(reply, request, client)
    means = (sums / samples).tolist()
    reply |= {f"loss.{name}": means[-1][column] for column, name in enumerate([*terms, *parts.penalty_names])}
    reply["loss.first_epoch"] = sum(means[0])
    return reply


class LocalTraining:
    """The op ``train`` of a method."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def __call__(self, client: Client, request: Payload) -> Payload:
        """Train the received weights on the local set and return them with the method's statistics.

        A client without a sample returns no weights. The returned vector is the resident model's own: it is valid
        until the next client is asked.
        """
        local_set = client.local_set
        if len(local_set) == 0:
            return {"samples": 0}
        method, settings, model = self.method, client.settings, client.model
        model.load(tensor_of(request, "weights"))
        parts = ActiveParts.start(method, client, request)
        terms = method.active_terms(client.task)
        loss = Objective(client.network, client.seen, terms, method.wants_intermediate)
        descend = _descent(client, parts, settings, method.grad_clip)
        names = [term.name for term in terms]
        sums = torch.zeros(settings.local_epochs, len(names) + len(parts.penalty_names), device=client.device)
        client.network.train()
        for epoch in range(settings.local_epochs):
            plan = plan_batches(client, epoch)
            order = local_set[plan.order.to(local_set.device)]
            for start in range(0, len(order), settings.batch):
                rows = slice(start, start + settings.batch)
                batch = client.batch = order[rows]
                images = client.images.augmented(batch, plan, rows)
                values = train_step(
                    images, client.labels(batch), loss=loss, leaves=model.parameters, descend=descend, parts=parts
                )
                sums[epoch].add_(values, alpha=len(batch))
        model.gradient.zero_()
        return training_reply(client, request, parts, model.vector, names, sums)


def _descent(client: Client, parts: ActiveParts, settings: TrainSettings, clip: float | None) -> Descent:
    """Return SGD on the resident model, which begins without velocity."""
    model, lr = client.model, learning_rate(settings, client.round)
    velocity = torch.zeros_like(model.weights)

    def descend(gradients: Sequence[Tensor | None]) -> list[Tensor]:
        model.gather(gradients)
        penalties = parts.penalise(model.weights, model.gradient)
        sgd(
            model.weights,
            model.gradient,
            velocity,
            lr=lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            clip=clip,
        )
        return penalties

    return descend
