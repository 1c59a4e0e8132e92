"""What a client does to its update before it leaves: clip its norm, add Gaussian noise; and what that guarantees.

The update is what training changed in the trained numbers. Clipped to norm C, two updates of whatever data differ by
at most 2C, so noise of standard deviation ``noise * C`` makes each release a Gaussian mechanism with
``mu = 2 / noise``. Releases compose, also adaptively: T of them have ``mu = 2 sqrt(T) / noise``, and the pairs
(epsilon, delta) of such a mechanism are known exactly (Balle and Wang, ICML 2018; Dong, Roth and Su, JRSS-B 2022).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.settings import PrivacySettings
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import rng_at

DELTA = 1e-5


@torch.no_grad()
def protect(reply: Payload, request: Payload, client: Client) -> Payload:
    """Clip and blur the update in a reply to ``train``, in place; a reply without weights stays as it is.

    Running statistics of BatchNorm are left alone, and so is everything else in the reply.
    """
    settings = client.privacy
    if settings.clip is None or "weights" not in reply:
        return reply
    trained = tensor_of(reply, "weights")[: client.model.num_trainable]
    received = tensor_of(request, "weights")[: client.model.num_trainable].to(trained)
    trained.copy_(clipped(trained, received, settings.clip))
    if settings.noise is not None:
        numbers = noise_for(client, received).standard_normal(len(trained), dtype=np.float32)
        trained.add_(torch.from_numpy(numbers).to(trained.device), alpha=settings.noise * settings.clip)
    return reply


def clipped(trained: Tensor, received: Tensor, clip: float) -> Tensor:
    """Return the trained numbers, drawn back towards the received ones to a distance of at most ``clip``."""
    update = trained - received
    norm = torch.linalg.vector_norm(update, dtype=torch.float64)
    # An update within the limit passes bit by bit; the host does not wait for the norm. Without a finite norm nothing
    # passes: a single NaN, which the server may have sent, would take the limit from all other numbers.
    return torch.where(norm <= clip, trained, received + update * (clip / norm).to(update.dtype))


def noise_for(client: Client, received: Tensor) -> np.random.Generator:
    """Return the generator of a client's noise: at an address, which only the client knows if it has a secret.

    A secret address includes the weights that came. A server that asks again with other weights must not meet the same
    noise, or the two would cancel; one that asks again with the same must not meet another, or both would average out.
    """
    where = client.task, client.round, client.id
    if client.secret is None:
        return rng_at(client.seed, "privacy-noise", *where)
    digest = hashlib.sha256(received.contiguous().cpu().numpy().tobytes()).digest()
    return rng_at(client.secret, "privacy-noise", *where, int.from_bytes(digest, "little"))


def statement(settings: PrivacySettings, releases: int, sends: Collection[str]) -> dict[str, Any]:
    """Return what a result says about privacy: the budget of one client's updates, and what it does not cover.

    :param sends: names of what leaves a client besides its weights, losses and number of samples.
    """
    stated: dict[str, Any] = {} if settings.clip is None else {"clip": settings.clip}
    if settings.noise is None:
        return stated
    delta = settings.delta or DELTA
    mu = 2 * math.sqrt(releases) / settings.noise
    return {
        **stated,
        "noise": settings.noise,
        "releases": releases,
        "delta": delta,
        "epsilon": epsilon_of(mu, delta),
        "not_covered": list(dict.fromkeys(["samples", "losses", *sorted(sends)])),
    }


def in_words(settings: PrivacySettings) -> str:
    """Say for a log what happens to updates before they leave."""
    if settings.clip is None:
        return "as they are, neither clipped nor blurred"
    noise = "no noise" if settings.noise is None else f"noise of {settings.noise * settings.clip:g} on every number"
    return f"clipped to norm {settings.clip:g}, {noise}"


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon for this delta of a Gaussian mechanism with ``mu = sensitivity / deviation``."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(mu, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(mu, middle) > delta else (low, middle)
    return high


def delta_of(mu: float, epsilon: float) -> float:
    """Return ``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)``, the exact delta of the mechanism."""
    at = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    first, second = torch.special.log_ndtr(at).tolist()
    return math.exp(first) - math.exp(min(epsilon + second, first))
