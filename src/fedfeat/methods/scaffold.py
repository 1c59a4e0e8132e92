r"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates take the drift out of local gradients.

Server and clients each keep an estimate of their gradient, c and c_k; a client trains on ``gradient - c_k + c``. Both
are as long as the trained weights and cross with them in every round.

Objective:
    $$
    \begin{aligned}
    \text{local step:} \quad & \nabla L_{\mathrm{base}} - c_k + c \\
    \text{after a local update:} \quad & c_k \leftarrow c_k - c +
    \frac{w_{\mathrm{start}} - w_{\mathrm{end}}}{\eta K'} \qquad \text{(option II)} \\
    \text{server:} \quad & c \leftarrow c + \frac{1}{N} \sum_{k \in \text{participants}} \Delta c_k
    \end{aligned}
    $$

    $N$ is the number of clients and $\eta$ the learning rate. $K'$ is the number of plain steps that go as far as
    the $K$ steps with momentum did; $K' = K$ without momentum.

Deviations:
    - Local steps have momentum and weight decay. The displacement is divided by the effective number of steps, since
      dividing by their plain number gives control variates that grow from round to round.
    - The server takes the average as it is: a global step size of 1.
    - Entries of classes that have just arrived start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Buffers, Capturable, Method, Penalty, PenaltyGradient, ServerStep, Statistic
from fedfeat.algorithm.registry import NoSettings, addon
from fedfeat.algorithm.sent import Sent
from fedfeat.algorithm.server import Server
from fedfeat.algorithm.settings import learning_rate
from fedfeat.algorithm.step import Step
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.models import Network

CONTROL, CHANGE = "control", "control_change"


@addon(
    "scaffold",
    sends=(
        Sent("down/train/control", "the server's control variate", ("trained",)),
        Sent(
            "up/train/control_change",
            "change of the client's control variate, as long as the weights",
            ("trained",),
            reveals_update="its change of the control variate is the update, up to known numbers",
        ),
    ),
    examples=("fedcbdr+scaffold",),
)
def scaffold(method: Method, settings: NoSettings) -> Method:
    """Control variates against client drift, on any base."""
    return replace(
        method,
        penalties=(*method.penalties, DriftCorrection()),
        statistics=(*method.statistics, OwnControl()),
        server_steps=(*method.server_steps, ServerControl()),
    )


class DriftCorrection(Penalty):
    """Adds ``c - c_k`` to every local gradient, before weight decay and momentum see it."""

    name = "scaffold"

    def start(self, client: Client, request: Payload) -> PenaltyGradient:
        """Fix the correction of this local update."""
        correction = tensor_of(request, CONTROL).to(client.device) - own_control(client)
        start = tensor_of(request, "weights")[: client.model.num_trainable].to(client.device)
        return Capturable(corrected, (start, correction))


class OwnControl(Statistic):
    """The client's control variate: moved after each local update to the average gradient along it (option II)."""

    per_step = True  # steps are counted

    def start(self, client: Client, request: Payload) -> Buffers:
        """Note where the local update starts."""
        return {
            "weights": tensor_of(request, "weights")[: client.model.num_trainable].to(client.device),
            "control": tensor_of(request, CONTROL).to(client.device),
            "steps": torch.zeros(1, device=client.device),
        }

    def update(self, network: Network, step: Step, buffers: Buffers) -> None:
        """Count steps."""
        buffers["steps"].add_(1)

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        """Move the control variate and send by how much."""
        train = client.settings
        length = learning_rate(train, client.round) * effective_steps(int(buffers["steps"]), train.momentum)
        change = (buffers["weights"] - client.model.weights) / length - buffers["control"]
        client.remember(CONTROL, own_control(client) + change)
        return {CHANGE: change}


class ServerControl(ServerStep):
    """The server's control variate: the mean over all registered clients, those at zero included."""

    def broadcast(self, server: Server) -> Payload:
        """Send it with the weights; entries of classes that have just arrived start at zero."""
        tensors, model = server.progress.tensors, server.model
        control = tensors.get(CONTROL)
        if control is None:
            tensors[CONTROL] = torch.zeros_like(model.weights)
        elif len(control) != model.num_trainable:
            tensors[CONTROL] = model.widened(control, server.seen.num_before)
        return {CONTROL: tensors[CONTROL]}

    def after_round(self, server: Server, replies: Mapping[int, Payload]) -> None:
        """Add ``|S| / N`` times the participants' mean change, which is their sum over N."""
        control = server.progress.tensors[CONTROL].clone()
        for reply in replies.values():
            control.add_(tensor_of(reply, CHANGE), alpha=1 / server.num_clients)
        server.progress.tensors[CONTROL] = control


def own_control(client: Client) -> Tensor:
    """Return a client's control variate in today's layout; zero before its first local update."""
    control = client.recall(CONTROL)
    return torch.zeros_like(client.model.weights) if control is None else control


def corrected(weights: Tensor, gradient: Tensor, start: Tensor, correction: Tensor) -> Tensor:
    """Add the correction to the gradient and return the linear term that it is the gradient of."""
    gradient.add_(correction)
    return torch.dot(correction, weights - start)


def effective_steps(steps: int, momentum: float) -> float:
    """Return how many plain steps with a constant gradient go as far as ``steps`` steps with momentum from rest.

    With momentum b step i of K moves the weights by ``(1 - b^(K - i + 1)) / (1 - b)`` times its gradient in the end.
    Dividing a displacement by the sum of these gives an average of gradients; dividing by K instead would give
    up to ``1 / (1 - b)`` times as much, and control variates that grow from round to round.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
