"""A client's side: in every step the network and its predecessor look at a synthetic batch together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.draws import draw_at
from fedfeat.federation.payload import Payload
from fedfeat.generation.batchnorm import batch_norms
from fedfeat.generation.pool import POOL, endless_batches
from fedfeat.models import Network

if TYPE_CHECKING:
    from fedfeat.federation.client import Client
    from fedfeat.methods.method import Look

PREVIOUS_MODEL = "previous_model"
MAPPING = "mapping"  # the trained layer between features and anchors, where a method has one
OURS, THEIRS = "synthetic_logits", "previous_logits"
OUR_MAP, THEIR_MAP = "synthetic_mapped", "previous_mapped"


def mapped(network: Network, features: Tensor) -> Tensor:
    """Return features as the mapping layer sees them."""
    out: Tensor = network.extras[MAPPING](features)
    return out


class SyntheticBatches:
    """Gives each step the logits of old classes on a synthetic batch, by this network and by the previous one."""

    def __init__(self, batch: int, *, with_mapping: bool = False) -> None:
        self.batch = batch
        self.with_mapping = with_mapping

    def start(self, client: Client, request: Payload) -> Look | None:
        """Return what a step refers to, or None in the first task."""
        batch_norms(client.network)  # refused now rather than when the first task has been trained
        if client.task == 0:
            return None
        teacher = client.frozen(PREVIOUS_MODEL, client.shared[PREVIOUS_MODEL], client.task - 1)
        where = client.task, client.round, client.id
        batches = endless_batches(
            client.shared[POOL],
            self.batch,
            client.images,
            lambda number: draw_at(client.config.seed, "synthetic-batches", *where, number),
        )

        def look(images: Tensor) -> dict[str, Tensor]:
            synthetic = next(batches)
            # The network is in training mode: its BatchNorm sees real and synthetic batches in turn, as published.
            ours = client.network(synthetic)
            with torch.no_grad():
                theirs = teacher(synthetic)
            found = {OURS: ours.logits[:, : client.num_old], THEIRS: theirs.logits}
            if self.with_mapping:
                found[OUR_MAP] = mapped(client.network, ours.features)
                with torch.no_grad():
                    found[THEIR_MAP] = mapped(teacher, theirs.features)
            return found

        return look
