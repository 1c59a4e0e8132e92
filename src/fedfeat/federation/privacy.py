"""What a client does to its update before it leaves: clip its norm, add Gaussian noise; and what that guarantees.

The update is what training changed in the trained numbers. Clipped to norm C, two updates of whatever data differ by
at most 2C, so noise of standard deviation ``noise * C`` makes each release a Gaussian mechanism with
``mu = 2 / noise``. Releases compose, also adaptively: T of them have ``mu = 2 sqrt(T) / noise``, and the pairs
(epsilon, delta) of such a mechanism are known exactly (Balle and Wang, ICML 2018; Dong, Roth and Su, JRSS-B 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedfeat.draws import draw_at
from fedfeat.errors import ConfigError
from fedfeat.federation.payload import Payload, tensor_of
from fedfeat.settings import Settings

if TYPE_CHECKING:
    from fedfeat.federation.client import Client
    from fedfeat.methods.method import Method

DELTA = 1e-5
# Entries from which the server can compute the very update that noise is to hide.
GIVES_THE_UPDATE_AWAY = {"control_change": "its change of the control variate is the update, up to known numbers"}


class PrivacySettings(Settings):
    """What clients do to their updates before they send them; nothing by default."""

    clip: float | None = Field(None, gt=0, description="largest norm of what a client's training changes; unset: any")
    noise: float | None = Field(
        None, gt=0, description="standard deviation of Gaussian noise on each number of the update, in units of clip"
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="delta at which the result states epsilon; unset: 0.00001"
    )

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> PrivacySettings:
        if self.noise is not None and self.clip is None:
            raise ValueError("noise is measured in units of clip; set clip too")
        if self.delta is not None and self.noise is None:
            raise ValueError("delta has no meaning without noise; set noise too, or leave delta out")
        return self


@torch.no_grad()
def protect(reply: Payload, request: Payload, client: Client) -> Payload:
    """Clip and blur the update in a reply to ``train``, in place; a reply without weights stays as it is.

    Running statistics of BatchNorm are left alone, and so is everything else in the reply.
    """
    settings = client.config.privacy
    if settings.clip is None or "weights" not in reply:
        return reply
    trained = tensor_of(reply, "weights")[: client.model.num_trainable]
    received = tensor_of(request, "weights")[: client.model.num_trainable].to(trained)
    trained.copy_(clipped(trained, received, settings.clip))
    if settings.noise is not None:
        numbers = noise_for(client).standard_normal(len(trained), dtype=np.float32)
        trained.add_(torch.from_numpy(numbers).to(trained.device), alpha=settings.noise * settings.clip)
    return reply


def clipped(trained: Tensor, received: Tensor, clip: float) -> Tensor:
    """Return the trained numbers, drawn back towards the received ones to a distance of at most ``clip``."""
    update = trained - received
    norm = torch.linalg.vector_norm(update, dtype=torch.float64)
    # An update within the limit passes bit by bit; the host does not wait for the norm. Without a finite norm nothing
    # passes: a single NaN, which the server may have sent, would take the limit from all other numbers.
    return torch.where(norm <= clip, trained, received + update * (clip / norm).to(update.dtype))


def noise_for(client: Client) -> np.random.Generator:
    """Return the generator of a client's noise: at an address in simulation, from the system's entropy otherwise.

    A server that may ask a round again with other weights must not meet the same noise: the two would cancel.
    """
    if client.secret is not None:
        return np.random.default_rng()
    return draw_at(client.config.seed, "privacy-noise", client.task, client.round, client.id)


def check_privacy(settings: PrivacySettings, norm: str, method: Method) -> None:
    """Refuse noise that would protect nothing, because the same thing also leaves without it."""
    if settings.noise is None:
        return
    if norm == "batch":
        raise ConfigError(
            "privacy.noise: BatchNorm's running statistics would leave clients without noise; set model.norm = 'group'"
        )
    for entry in GIVES_THE_UPDATE_AWAY.keys() & method.sends.keys():
        raise ConfigError(
            f"privacy.noise: {method.name} also sends {entry!r}, and {GIVES_THE_UPDATE_AWAY[entry]}; "
            "leave noise out, or use another method"
        )


def statement(settings: PrivacySettings, releases: int, sends: Iterable[str]) -> dict[str, Any]:
    """Return what a result says about privacy: the budget of one client's updates, and what it does not cover."""
    stated: dict[str, Any] = {"clip": settings.clip}
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
        "not_covered": [
            *("samples", "losses"),
            # Clients that own their data send tables, and say which classes and how many exemplars they hold.
            *sorted((told := {*sends}) | ({"classes", "exemplars"} if "tables" in told else set())),
        ],
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
