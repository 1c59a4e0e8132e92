"""How far a reply may move the model: finite numbers can still end a run, if they are large enough.

The norm of an update is compared with the median of its round. Fewer than three updates have no median that an
attacker does not decide, so every update is also compared with the model itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from fedfeat.core.payload import Payload, tensor_of

OF_MEDIAN = 100.0  # largest norm of an update, in units of the round's median
OF_MODEL = 10.0  # and in units of the norm of the model that was sent
FEWEST = 3  # updates with a median
WEIGHTS = "weights"


class UpdateSize(NamedTuple):
    """The norm of one client's update of trained numbers, or of running statistics, in two units."""

    client: int
    of_median: float  # 0 where there is no median
    of_model: float


def update_sizes(
    requests: Mapping[int, Payload], replies: Mapping[int, Payload], trained: int, noise: float = 0.0
) -> Iterator[UpdateSize]:
    """Yield how large the updates of a round are.

    :param trained: how many numbers of the model are trained; running statistics follow them and are looked at apart.
    :param noise: the norm that noise gives to an honest update.
    """
    for part, blurred in ((slice(None, trained), noise), (slice(trained, None), 0.0)):
        sent = {k: tensor_of(requests[k], WEIGHTS)[part].double() for k, r in replies.items() if WEIGHTS in r}
        norms = {k: _norm(tensor_of(replies[k], WEIGHTS)[part].to(w) - w) for k, w in sent.items()}
        median = statistics.median(norms.values()) if len(norms) >= FEWEST else 0.0
        for client, norm in norms.items():
            model = max(_norm(sent[client]), blurred)
            yield UpdateSize(client, norm / median if median else 0.0, norm / model if model else 0.0)


def oversized(
    requests: Mapping[int, Payload], replies: Mapping[int, Payload], trained: int, noise: float = 0.0
) -> dict[int, str]:
    """Return the clients whose update is far too large, and what is wrong with it."""
    faults: dict[int, str] = {}
    for client, of_median, of_model in update_sizes(requests, replies, trained, noise):
        if of_median > OF_MEDIAN:
            faults[client] = f"{WEIGHTS}: an update {of_median:.3g} times as large as the round's median"
        elif of_model > OF_MODEL:
            faults[client] = f"{WEIGHTS}: an update {of_model:.3g} times as large as the model"
    return faults


def _norm(vector: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
