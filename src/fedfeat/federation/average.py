"""The server's side of a round: the average of the clients' models, and their losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.sent import LARGEST
from fedfeat.algorithm.server import ServerState
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.scenario.scenario import MAX_LISTED_CLIENTS

FIRST_EPOCH = "loss.first_epoch"  # the sum of all terms in the first epoch


@dataclass(frozen=True)
class Average:
    """What a round's replies add up to."""

    weights: Tensor | None  # None when no client had a sample
    replies: dict[int, Payload]  # by client, without the weights
    samples: int


def average(replies: Iterable[tuple[int, Payload]], how: Literal["uniform", "samples"]) -> Average:
    """Average the clients' vectors, BatchNorm's running statistics included, one reply at a time."""
    total: Tensor | None = None
    mass = 0.0
    kept: dict[int, Payload] = {}
    samples = 0
    for client, reply in replies:
        count = int(number_of(reply, "samples"))
        if count == 0:
            continue
        weight = 1.0 if how == "uniform" else float(count)
        vector = tensor_of(reply, "weights")
        total = vector * weight if total is None else total.add_(vector, alpha=weight)
        mass += weight
        samples += count
        kept[client] = {k: v for k, v in reply.items() if k != "weights"}
    return Average(None if total is None else total.div_(mass), kept, samples)


def with_momentum(
    before: Tensor, average: Tensor, velocity: Tensor | None, *, momentum: float, num_trainable: int
) -> tuple[Tensor, Tensor]:
    """Return the server's next model and its velocity: ``v <- momentum * v + (average - before)``.

    FedAvgM (Hsu et al., 2019). Only what is trained has a velocity; BatchNorm's running statistics are averaged.
    """
    start = before[:num_trainable].to(average)
    step = average[:num_trainable] - start
    velocity = step if velocity is None else momentum * velocity.to(average) + step
    return torch.cat([start + velocity, average[num_trainable:]]), velocity


def fault_of(result: Average) -> str | None:
    """Return which loss of which client is not finite, or that the average is not; None if training goes well."""
    for client, reply in sorted(result.replies.items()):
        losses = sorted((name == FIRST_EPOCH, name) for name in reply if name.startswith("loss."))  # a term comes first
        for _, name in losses:
            if not math.isfinite(value := number_of(reply, name)):
                return f"the loss term {name.removeprefix('loss.')!r} of client {client} is {value}"
    if result.weights is not None and not bool(torch.isfinite(result.weights).all()):
        return "the average of the clients' weights is not finite, though their losses are"
    return None


def fault_of_state(state: ServerState) -> str | None:
    """Return which number of the server's is not finite, or too large to go on with; None if all are fit for use."""
    tensors = {"the averaged weights": state.weights, **state.tensors, **state.shared}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool((tensor.abs() <= LARGEST).all()):
            return f"{name}: a number that is not finite, or larger than {LARGEST:g}"
    for name, number in state.numbers.items():
        if not abs(number) <= LARGEST:
            return f"{name}: {number:g}"
    return None


def mean_losses(replies: Sequence[Payload]) -> dict[str, float]:
    """Return each loss term averaged over clients by their samples."""
    names = sorted({k for r in replies for k in r if k.startswith("loss.")})
    means = {}
    for name in names:  # a term may be active for some clients only
        values = [(number_of(r, name), number_of(r, "samples")) for r in replies if name in r]
        means[name.removeprefix("loss.")] = float(np.average([v for v, _ in values], weights=[n for _, n in values]))
    return means


def client_losses(replies: Mapping[int, Payload], most: int = MAX_LISTED_CLIENTS) -> dict[str, float]:
    """Return the sum of all loss terms of each client that trained; nothing for more clients than a log can list."""
    if len(replies) > most:
        return {}
    return {
        str(client): sum(number_of(reply, k) for k in reply if k.startswith("loss.") and k != FIRST_EPOCH)
        for client, reply in sorted(replies.items())
    }
