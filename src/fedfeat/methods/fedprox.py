r"""FedProx (Li et al., MLSys 2020): a proximal term keeps local training near the model it started from.

Clients with different data drift apart while they train. A quadratic pull to the round's global model holds them
together; it costs nothing to send.

Objective:
    $$
    L = L_{\mathrm{base}} + \frac{\mu}{2} \, \left\lVert w - w_{\mathrm{global}} \right\rVert^2
    $$

    over everything that is trained, with the gradient in closed form.

Deviations:
    - Every client does all its local epochs; the paper also lets slow ones do less.
    - BatchNorm's running statistics are not pulled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import quadratic_pull
from fedfeat.algorithm.method import Capturable, Method, Penalty, PenaltyGradient
from fedfeat.algorithm.registry import addon
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.settings import Settings, setting


class FedProxSettings(Settings):
    """Settings of FedProx."""

    mu: float = setting(
        0.01,
        "strength of the pull to the round's global model; 0 is plain averaging",
        origin="a choice within the paper's grid, 0.001 to 1",
        ge=0,
    )


@addon("fedprox", FedProxSettings, examples=("fedcbdr+fedprox",))
def fedprox(method: Method, settings: FedProxSettings) -> Method:
    """A proximal term against client drift, on any base."""
    if settings.mu == 0:
        return method
    return replace(method, penalties=(*method.penalties, Proximity(settings.mu)))


class Proximity(Penalty):
    """``mu / 2 ||w - w_global||^2`` over everything that is trained."""

    name = "prox"

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def start(self, client: Client, request: Payload) -> PenaltyGradient:
        """Hold on to the weights that the round began with."""
        anchor = tensor_of(request, "weights")[: client.model.num_trainable].to(client.device)
        return Capturable(partial(quadratic_pull, weight=self.mu), (anchor,))
