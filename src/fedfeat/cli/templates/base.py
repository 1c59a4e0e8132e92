r"""my_method: what it does, in one sentence (authors, venue and year where it is published).

The idea in a few lines: what goes wrong without it, and what it does about it.

Objective:
    $$
    L = \mathrm{CE}(z, y) - \lambda \, \frac{1}{B} \sum_i H\left( \operatorname{softmax}(z_i) \right)
    $$

    over all seen classes, on the task's images and the exemplars. Clients keep the images with the largest entropy $H$.

Deviations:
    - What differs from the published program.
"""

import torch
from torch import Tensor

from fedfeat.api import (
    Client,
    LossTerm,
    Method,
    Op,
    Payload,
    Sent,
    Settings,
    TaskEnd,
    TaskEndStep,
    base,
    number_of,
    setting,
    tensor_of,
)

KEPT = "my_method.kept"  # what clients send


class MyMethodSettings(Settings):
    """Settings of my_method: the table ``[my_method]`` of a configuration."""

    weight: float = setting(0.1, "weight of the entropy in the loss", origin="a choice", ge=0, alias="lambda")


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction [B]."""
    log_probabilities = logits.log_softmax(dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def keep_unsure(client: Client, request: Payload) -> Payload:
    """Client: keep the images of the task with the largest entropy, as many as its quota."""
    client.model.load(tensor_of(request, "weights"))  # clients share one network: load before use
    found = [entropy(client.network.head(features)).detach() for features in client.features(client.samples)]
    order = torch.cat([client.samples[:0].float(), *found]).argsort(descending=True, stable=True)  # also of nothing
    chosen = client.samples[order[: int(number_of(request, "quota"))]]
    client.keep(chosen)
    return {KEPT: len(chosen)}


class KeepUnsure(TaskEndStep):
    """The server's side at the end of every task but the last."""

    def ops(self) -> dict[str, Op]:
        """Clients answer this."""
        return {"keep_my_method": keep_unsure}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Send the model that the task ended with, and each client's quota."""
        task_end.exchange.gather("keep_my_method", task_end.model_and_quota())


@base(
    "my_method",
    MyMethodSettings,
    sends=(Sent(f"up/keep_my_method/{KEPT}", "how many images the client kept", kind="count"),),
)
def my_method(settings: MyMethodSettings) -> Method:
    """One line for the list of methods."""
    term = LossTerm("entropy", lambda step: -entropy(step.logits).mean(), settings.weight)
    return Method("my_method", terms=(term,), replay=KeepUnsure())
