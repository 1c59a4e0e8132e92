"""A client's side: in every step the network and its predecessor look at a synthetic batch together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Capturable, ReferenceFunction
from fedfeat.core.payload import Payload
from fedfeat.core.rng import rng_at
from fedfeat.methods.data_free.batchnorm import batch_norms
from fedfeat.methods.data_free.pool import POOL, draw_batches, varied
from fedfeat.models import Network

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

    def start(self, client: Client, request: Payload) -> ReferenceFunction | None:
        """Return what a step refers to, or None in the first task."""
        batch_norms(client.network)  # refused now rather than when the first task has been trained
        if client.task == 0:
            return None
        teacher = client.frozen(PREVIOUS_MODEL, client.shared[PREVIOUS_MODEL], client.task - 1)
        pool = client.shared[POOL]
        size = min(self.batch, len(pool))

        def look(images: Tensor, order: Tensor, crops: Tensor, flips: Tensor, cursor: Tensor) -> dict[str, Tensor]:
            rows = cursor + torch.arange(size, device=pool.device)
            pixels = varied(pool[order[rows]], crops[rows], flips[rows], client.images.augmentation)
            synthetic = client.images.normalise(pixels.float())
            cursor += size
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

        return Capturable(look, self._draws(client, len(pool), size))

    def _draws(self, client: Client, count: int, size: int) -> tuple[Tensor, ...]:
        """Return the draws of all steps of a visit, and where it stands in them.

        Rows are filled up to a power of two of steps, so that clients of like sizes share a captured step.
        """
        train, where = client.settings, (client.task, client.round, client.id)
        steps = train.local_epochs * math.ceil(len(client.local_set) / train.batch)
        drawn = draw_batches(
            count,
            size,
            steps,
            client.images.augmentation,
            lambda number: rng_at(client.seed, "synthetic-batches", *where, number),
        )
        rows = size * 2 ** (steps - 1).bit_length()
        filled = [values.new_zeros(rows, *values.shape[1:]) for values in drawn[:3]]
        for room, values in zip(filled, drawn, strict=False):
            room[: len(values)] = values
        return *(room.to(client.device) for room in filled), torch.zeros((), dtype=torch.long, device=client.device)
