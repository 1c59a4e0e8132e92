r"""FedEWC: elastic weight consolidation (Kirkpatrick et al., PNAS 2017) inside federated averaging.

At the end of a task clients measure how much each parameter matters to it (diagonal Fisher information), the server
merges the diagonals, and later tasks pull parameters back to where they were, in proportion. No data are kept.

Objective:
    $$
    \begin{aligned}
    \text{task 1:} \quad & L = \mathrm{CE}(z, y) \\
    \text{afterwards:} \quad & L = \mathrm{CE}(z_{\mathrm{new}}, y) + \frac{\lambda}{2}
    \sum_i F_i\,(w_i - w^*_i)^2 \\
    \text{on a client:} \quad & F_i = \min\left( F_{\max}, \frac{1}{B} \sum_{b=1}^{B} \left(
    \frac{\partial\,\mathrm{CE}_b}{\partial w_i} \right)^2 \right) \\
    \text{over tasks:} \quad & F \leftarrow a\,F_{\mathrm{before}} + (1 - a)\,F_{\mathrm{task}}, \qquad
    a = C_{\mathrm{before}} / C
    \end{aligned}
    $$

    $b$ runs over batches, and $F_{\max}$ is `fisher_max`. Clients are averaged by their samples. $w^*$ is the model
    that the previous task ended with; rows of new classes have $F = 0$. Where tasks bring domains and no class is old,
    $a$ is the share of earlier tasks.

Deviations:
    - In the released federated code the penalty is computed on a network that nobody trains and has no effect. Mode
      `corrected` lets it reach the trained weights; mode `official_effective` leaves it out.
    - The diagonal is measured once, at the end of a task, with the final global model in evaluation mode, and merged
      over clients. The released code measures it after every local update and merges nothing.
    - Images are augmented as in training while it is measured.
    - The released code of this baseline trains at a constant 0.01 without weight decay; here the run decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import cross_entropy, quadratic_pull
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
from fedfeat.algorithm.sent import PREVIOUS_MODEL, Sent, final_model
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.core.settings import Settings, setting
from fedfeat.models import FlatModel

FISHER = "fisher"
INERT = (
    "fedewc: mode official_effective leaves the penalty out, since the released code computes it on a network that "
    "nobody trains; what remains is finetune (set train.weight_decay to 0 to match its optimiser)"
)


class FedEWCSettings(Settings):
    """Settings of FedEWC."""

    mode: Literal["corrected", "official_effective"] = setting(
        "corrected",
        "a penalty that reaches the trained weights, or what the released code amounts to: none",
        origin="a choice, see the deviations",
    )
    weight: float = setting(
        1000.0, "weight of the penalty", origin="released code (PyCIL, TARGET, LANDER)", ge=0, alias="lambda"
    )
    fisher_max: float = setting(
        1e-4, "upper limit of a client's Fisher values", origin="released code (PyCIL, TARGET, LANDER)", gt=0
    )


def _is_felt(settings: FedEWCSettings) -> bool:
    return settings.mode == "corrected"


@base(
    "fedewc",
    FedEWCSettings,
    sends=(
        final_model("fisher"),
        Sent(
            "up/fisher/fisher",
            "diagonal Fisher information of the finished task's data",
            ("trained",),
            low=0,
            when=_is_felt,
        ),
        Sent("up/fisher/samples", "how many images the diagonal rests on", kind="count", always=True, when=_is_felt),
        Sent(
            "down/train/shared.fisher",
            "the merged diagonal, with the first request of the next task",
            ("trained_before",),
        ),
        PREVIOUS_MODEL,
    ),
)
def fedewc(settings: FedEWCSettings) -> Method:
    """FedEWC: parameters that mattered to earlier tasks are pulled back to their old values."""
    loss = NEW_CLASS_CROSS_ENTROPY
    if settings.mode == "official_effective":
        return Method("fedewc", loss=loss, notes=(INERT,))
    return Method(
        "fedewc",
        loss=loss,
        penalties=(Consolidation(settings.weight),),
        task_end=(FisherMerge(settings.fisher_max),),
        keeps_previous_model=True,
    )


class Consolidation(Penalty):
    """The quadratic pull to the previous task's final model; rows of new classes are free."""

    name = "ewc"

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def start(self, client: Client, request: Payload) -> PenaltyGradient | None:
        """Bring the merged Fisher diagonal and the anchor into today's layout."""
        if FISHER not in client.shared:
            return None
        fisher = client.model.widened(client.shared[FISHER], client.global_seen.num_before)
        anchor = client.model.widened(client.shared["previous_model"], client.global_seen.num_before)
        return Capturable(partial(quadratic_pull, weight=self.weight), (anchor, fisher))


class FisherMerge(TaskEndStep):
    """End of a task: clients measure, the server merges over clients and tasks; all get the outcome once."""

    def __init__(self, fisher_max: float) -> None:
        self.fisher_max = fisher_max

    def ops(self) -> dict[str, Op]:
        """Clients answer ``fisher``."""
        return {"fisher": self.measure}

    def measure(self, client: Client, request: Payload) -> Payload:
        """Client: the Fisher diagonal of the finished task under the final model."""
        if len(client.samples) == 0:
            return {"samples": 0}
        client.model.load(tensor_of(request, "weights"))
        # Running statistics: the diagonal belongs to the model that will be anchored, and leaves it as it is.
        client.network.eval()
        fisher = fisher_diagonal(client.model, client.epoch("fisher"), self.fisher_max)
        return {FISHER: fisher, "samples": len(client.samples)}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: average over clients by their samples, then blend with earlier tasks by their classes."""
        server = task_end.server
        replies = task_end.exchange("fisher", task_end.final_model())
        new = weighted_average(replies)
        old = server.progress.shared.get(FISHER)
        if old is not None:
            seen = server.seen
            known = server.model.widened(torch.ones_like(old), seen.num_before)
            old = server.model.widened(old, seen.num_before)
            share = seen.num_old / seen.num_classes if seen.num_old else seen.task / (seen.task + 1)
            new = old if new is None else blend(old, new, share * known)
        if new is not None:
            server.progress.share(FISHER, new)


def fisher_diagonal(model: FlatModel, batches: Iterable[tuple[Tensor, Tensor]], limit: float) -> Tensor:
    """Return the mean over batches of the squared gradient of the batch's mean loss, cut off at ``limit``.

    Labels are the true ones and all seen classes compete. Squaring after the mean over a batch gives smaller values
    than squaring per sample; the usual limit and penalty weight belong to this scale.
    """
    total, count = torch.zeros_like(model.gradient), 0
    for images, labels in batches:
        cross_entropy(model.network(images).logits, labels).backward()  # type: ignore[no-untyped-call]
        total.addcmul_(model.gradient, model.gradient)
        model.gradient.zero_()
        count += 1
    return total.div_(count).clamp_(max=limit)


def weighted_average(replies: Iterable[tuple[int, Payload]]) -> Tensor | None:
    """Return the clients' diagonals averaged by their samples, one reply at a time; None if nobody had any."""
    total: Tensor | None = None
    mass = 0.0
    for _, reply in replies:
        count = number_of(reply, "samples")
        if count > 0:
            fisher = tensor_of(reply, FISHER)
            total = fisher * count if total is None else total.add_(fisher, alpha=count)
            mass += count
    return None if total is None else total.div_(mass)


def blend(old: Tensor, new: Tensor, share_old: Tensor) -> Tensor:
    """Return ``a F_old + (1 - a) F_new`` with a share per entry: zero where only the new task has a value."""
    return share_old * old + (1 - share_old) * new
