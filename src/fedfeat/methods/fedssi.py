r"""FedSSI (Li et al., ICML 2025): synaptic intelligence along the path of a personalised surrogate model.

Before a task's data are dropped, each client briefly trains a surrogate between its own data and the global model
(PSM) and notes what each parameter contributed to the falling loss. Later tasks pull parameters back to the previous
global model by that importance. Importances stay on the client.

Objective:
    $$
    \begin{aligned}
    \text{task 1:} \quad & L = \mathrm{CE}(z, y) \\
    \text{afterwards:} \quad & L = \mathrm{CE}(z_{\mathrm{new}}, y) + \alpha \sum_i \Omega_i\,(w_i - w^*_i)^2 \\
    \text{surrogate:} \quad & v \leftarrow v - \eta\,u, \quad u = g + q\,(v - \theta), \quad
    q = \frac{1 - \lambda}{2 \lambda}, \quad s_i \leftarrow s_i + \eta\,g_i\,u_i \\
    \text{importance:} \quad & \Omega_i \leftarrow \Omega_i + \frac{\max(s_i, 0)}{(\Delta v_i)^2 + \xi}
    \end{aligned}
    $$

    $g$ is the gradient of the task's loss without the penalty, $\eta$ the learning rate, and $\Delta v$ how far the
    surrogate moved. $v$ starts at $\theta$, where the task ended. $w^*$ is the model that the previous task ended
    with; rows of new classes have $\Omega = 0$.

Deviations:
    - No code was released. The pull of the surrogate and the form of the penalty are published; when the surrogate
      is trained, for how long and how strongly it counts are assumptions.
    - The softmax over new classes is an assumption too, taken over from the other methods without exemplars.
    - Gradients are cut off value by value while the penalty is on; add-ons named after it are not cut.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import pull_to_global, quadratic_pull
from fedfeat.algorithm.method import (
    NEW_CLASS_CROSS_ENTROPY,
    Capturable,
    Method,
    Op,
    Penalty,
    PenaltyGradient,
    TaskEndStep,
)
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import PREVIOUS_MODEL, final_model
from fedfeat.algorithm.step import take_step
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.settings import Settings, setting

IMPORTANCE = "importance"
ASSUMED = (
    "fedssi: no code was released; passes, learning rate and strengths of the surrogate are assumptions, and so "
    "is the softmax over new classes only"
)


class FedSSISettings(Settings):
    """The surrogate model and the penalty."""

    personal: float = setting(
        0.5,
        "share of local data against the global model in the surrogate",
        origin="assumed, the middle of its range",
        gt=0,
        le=1,
        alias="lambda",
    )
    passes: int = setting(5, "passes of the surrogate over the finished task's data", origin="assumed", ge=1)
    lr: float = setting(
        0.01,
        "learning rate of the surrogate, plain SGD",
        origin="assumed; from re-implementations of personalised models",
        gt=0,
    )
    alpha: float = setting(
        10.0,
        "weight of the penalty",
        origin="assumed; of 0.1, 1, 10 and 100 the smallest whose pull is felt on the digits",
        ge=0,
    )
    xi: float = setting(
        1e-3,
        "guard in the importance's denominator; alpha depends on its scale",
        origin="assumed; common for SI. With another, 1, and alpha 0.5 the pull is 4e-5 of the data's gradient there",
        gt=0,
    )
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["none"] = setting(
        1.0, "limit of each gradient value while the penalty is on", origin="assumed; as in Mammoth"
    )


@base("fedssi", FedSSISettings, sends=(final_model("surrogate"), PREVIOUS_MODEL))
def fedssi(settings: FedSSISettings) -> Method:
    """FedSSI: parameters that lowered the loss of a personalised surrogate are pulled back to their old values."""
    return Method(
        "fedssi",
        loss=NEW_CLASS_CROSS_ENTROPY,
        penalties=(ImportancePull(settings),),
        task_end=(Surrogate(settings),),
        keeps_previous_model=True,
        notes=(ASSUMED,),
    )


class ImportancePull(Penalty):
    """The quadratic pull to the previous task's final model, by the client's own importances."""

    name = "ssi"

    def __init__(self, settings: FedSSISettings) -> None:
        self.settings = settings

    def start(self, client: Client, request: Payload) -> PenaltyGradient | None:
        """Return the pull from task 2 on; it is zero for a client that has not measured any importance yet."""
        if client.task == 0:
            return None
        kept = client.recall(IMPORTANCE)
        importance = torch.zeros_like(client.model.weights) if kept is None else kept
        anchor = client.model.widened(client.shared["previous_model"], client.global_seen.num_before)
        return Capturable(self._pull, (anchor, importance))

    def _pull(self, weights: Tensor, gradient: Tensor, anchor: Tensor, importance: Tensor) -> Tensor:
        value = quadratic_pull(weights, gradient, anchor, importance, weight=2 * self.settings.alpha)
        # What the data and this penalty ask for together; add-ons come after it and are not cut.
        if self.settings.clip != "none":
            gradient.clamp_(-self.settings.clip, self.settings.clip)
        return value


class Surrogate(TaskEndStep):
    """End of a task: each client measures importances on its own; only the final model is sent to it."""

    def __init__(self, settings: FedSSISettings) -> None:
        self.settings = settings

    def ops(self) -> dict[str, Op]:
        """Clients answer ``surrogate``."""
        return {"surrogate": self.measure}

    def measure(self, client: Client, request: Payload) -> Payload:
        """Client: train the surrogate, and add what its parameters contributed to their importance."""
        if len(client.samples) == 0:
            return {}
        contribution = self.contributions(client, tensor_of(request, "weights"))
        start = tensor_of(request, "weights")[: client.model.num_trainable].to(client.device)
        importance = importance_of(contribution, client.model.weights - start, self.settings.xi)
        earlier = client.recall(IMPORTANCE)
        client.remember(IMPORTANCE, importance if earlier is None else earlier + importance)
        return {}

    def contributions(self, client: Client, global_weights: Tensor) -> Tensor:
        """Train the surrogate in the resident model and return what each parameter contributed."""
        model, settings = client.model, self.settings
        model.load(global_weights)
        anchor = model.weights.clone()
        contribution = torch.zeros_like(anchor)
        pull = pull_to_global(settings.personal)
        client.network.train()
        for number in range(settings.passes):
            for images, labels in client.epoch("surrogate", number):
                loss = client.loss.function(take_step(client.network, images, labels, client.seen))
                loss.backward()  # type: ignore[no-untyped-call]
                surrogate_step(model.weights, model.gradient, anchor, contribution, pull=pull, lr=settings.lr)
        return contribution

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: send the final model to every present client."""
        task_end.exchange.gather("surrogate", task_end.final_model())


@torch.no_grad()
def surrogate_step(
    weights: Tensor, gradient: Tensor, anchor: Tensor, contribution: Tensor, *, pull: float, lr: float
) -> None:
    """Take one plain step along ``g + q (v - anchor)``, note its share of the falling loss, clear the gradient.

    The share is minus the loss's gradient times the displacement, summed along the path: SI's path integral.
    """
    direction = gradient + pull * (weights - anchor)
    contribution.addcmul_(gradient, direction, value=lr)
    weights.add_(direction, alpha=-lr)
    gradient.zero_()


def importance_of(contribution: Tensor, displacement: Tensor, xi: float) -> Tensor:
    """Return the contribution per squared displacement, never negative."""
    return contribution.clamp(min=0) / (displacement.square() + xi)
