r"""my_method: what it does, in one sentence (authors, venue and year where it is published).

The idea in a few lines: what goes wrong without it, and what it does about it.

Objective:
    $$
    L = L_{\mathrm{base}} + \lambda \, \frac{1}{B} \sum_i \left\lVert f_i - \mu_{y_i} \right\rVert^2
    $$

    where $\mu_c$ is the mean of the batch's features of class $c$.

Deviations:
    - What differs from the published program.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfeat.api import (
    Buffers,
    Client,
    LossTerm,
    Method,
    Payload,
    Sent,
    Settings,
    Statistic,
    addon,
    number_of,
    setting,
)

LENGTH = "my_method.length"  # what clients send


class MyMethodSettings(Settings):
    """Settings of my_method: the table ``[my_method]`` of a configuration."""

    weight: float = setting(0.1, "weight of the loss", origin="a choice", ge=0, alias="lambda")
    from_task: int = setting(1, "first task with the loss", origin="a choice", ge=1)


def spread(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared distance of features [B, d] from the mean of their class in the batch."""
    same = (labels[:, None] == labels[None, :]).to(features)
    return (features - same @ features / same.sum(dim=1, keepdim=True)).square().sum(dim=1).mean()


class FeatureLength(Statistic):
    """What a client measures after its training, with one more pass over its images, and how the server joins it."""

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        """Client: return what is sent along with the weights."""
        features = torch.cat(list(client.features(client.local_set)))
        return {LENGTH: float(features.norm(dim=1).mean())}

    def reduce(self, replies: Sequence[Payload]) -> dict[str, float]:
        """Server: return numbers for the log; nothing where no client replied."""
        lengths = [number_of(reply, LENGTH) for reply in replies]
        return {LENGTH: sum(lengths) / len(lengths)} if lengths else {}


@addon(
    "my_method",
    MyMethodSettings,
    sends=(Sent(f"up/train/{LENGTH}", "mean length of the client's features", low=0),),
    examples=("replay+my_method",),
)
def my_method(method: Method, settings: MyMethodSettings) -> Method:
    """One line for the list of methods."""
    term = LossTerm(
        "my_method", lambda step: spread(step.features, step.labels), settings.weight, from_task=settings.from_task
    )
    return replace(method, terms=(*method.terms, term), statistics=(*method.statistics, FeatureLength()))
