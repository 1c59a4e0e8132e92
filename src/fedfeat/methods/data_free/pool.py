"""The synthetic pool: 8-bit images made by the server, and how a model learns from endless batches of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Capturable, Reference, ReferenceFunction
from fedfeat.algorithm.sent import Sent
from fedfeat.core.payload import Payload
from fedfeat.core.rng import rng_at
from fedfeat.data.augment import DeviceImages, EpochPlan, crop_and_flip, plan_epoch
from fedfeat.data.dataset import Augmentation
from fedfeat.methods.data_free.losses import batch_norms
from fedfeat.models import Network

POOL = "synthetic_pool"  # the name under which clients receive it
SYNTHETIC_POOL = Sent(
    f"down/train/shared.{POOL}", "8-bit images, with the first request of the next task", ("pool", "pixels"), item=1
)
PREVIOUS_MODEL = "previous_model"
MAPPING = "mapping"  # the trained layer between features and anchors, where a method has one
# What a step finds under its references.
LOGITS, PREVIOUS_LOGITS = "synthetic_logits", "previous_logits"
MAPPED, PREVIOUS_MAPPED = "synthetic_mapped", "previous_mapped"

LEAST_STEPS = 4  # that a plan has rows for: an engine that captures a step tries it on up to three batches

PassRng = Callable[[int], np.random.Generator]  # the random numbers of each pass over the pool


def quantised(images: Tensor) -> Tensor:
    """Turn images [B, C, H, W] in 0..1 into bytes [B, H, W, C], truncating as a PNG writer does."""
    return (images.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


@dataclass
class SyntheticPool:
    """What the server has made so far; the classes that it intended never leave it."""

    batches: list[Tensor] = field(default_factory=list)
    intended: list[Tensor] = field(default_factory=list)

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Store a batch in 8 bits."""
        self.batches.append(quantised(images))
        self.intended.append(labels)

    @property
    def images(self) -> Tensor:
        """All images, uint8 [N, H, W, C]."""
        return torch.cat(self.batches)

    @property
    def labels(self) -> Tensor:
        """The classes that were intended, [N]."""
        return torch.cat(self.intended)


def crops_and_flips(augmentation: Augmentation) -> Augmentation:
    """Return the part of an augmentation that synthetic images get."""
    return replace(augmentation, brightness=0.0, trivial=0.0, cutout=0.0)


def varied(pixels: Tensor, crops: Tensor, flips: Tensor, augmentation: Augmentation) -> Tensor:
    """Crop and flip images [B, H, W, C] as the data set's own are; their brightness is left alone."""
    if not (augmentation.crop_padding or augmentation.flip):
        return pixels
    return crop_and_flip(pixels, crops, flips, augmentation.crop_padding)


def plan_passes(count: int, size: int, augmentation: Augmentation, rng: PassRng) -> Iterator[EpochPlan]:
    """Yield the plan of one pass over a pool after the other, for ever.

    What is left at the end of a pass and would not fill a batch of ``size`` is skipped.
    """
    used = count // size * size
    for number in itertools.count():
        plan = plan_epoch(rng(number), count, crops_and_flips(augmentation))
        yield EpochPlan(*(values[:used] for values in plan))


def endless_batches(pool: Tensor, batch: int, images: DeviceImages, rng: PassRng) -> Iterator[Tensor]:
    """Yield normalised batches of one fixed size for ever, in a new order on every pass."""
    size = min(batch, len(pool))
    for plan in plan_passes(len(pool), size, images.augmentation, rng):
        order = plan.order.to(pool.device)
        for start in range(0, len(order), size):
            visited = slice(start, start + size)
            pixels = varied(pool[order[visited]], plan.crops[visited], plan.flips[visited], images.augmentation)
            yield images.normalise(pixels.float())


def plan_batches(count: int, size: int, batches: int, augmentation: Augmentation, rng: PassRng) -> EpochPlan:
    """Return the plan of so many batches in one row: the same that endless batches make as they go."""
    passes = itertools.islice(plan_passes(count, size, augmentation, rng), math.ceil(batches / (count // size)))
    return EpochPlan(*(torch.cat(values)[: batches * size] for values in zip(*passes, strict=True)))


def mapped(network: Network, features: Tensor) -> Tensor:
    """Return features as the mapping layer sees them."""
    out: Tensor = network.extras[MAPPING](features)
    return out


class SyntheticBatches(Reference):
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

        def answers(images: Tensor, order: Tensor, crops: Tensor, flips: Tensor, cursor: Tensor) -> dict[str, Tensor]:
            rows = cursor + torch.arange(size, device=pool.device)
            pixels = varied(pool[order[rows]], crops[rows], flips[rows], client.images.augmentation)
            synthetic = client.images.normalise(pixels.float())
            cursor += size
            # The network is in training mode: its BatchNorm sees real and synthetic batches in turn, as published.
            current = client.network(synthetic)
            with torch.no_grad():
                previous = teacher(synthetic)
            found = {LOGITS: current.logits[:, : client.global_seen.num_before], PREVIOUS_LOGITS: previous.logits}
            if self.with_mapping:
                found[MAPPED] = mapped(client.network, current.features)
                with torch.no_grad():
                    found[PREVIOUS_MAPPED] = mapped(teacher, previous.features)
            return found

        return Capturable(answers, self._plan(client, len(pool), size))

    def _plan(self, client: Client, count: int, size: int) -> tuple[Tensor, ...]:
        """Return order, crops and flips of all steps of a local update, and a cursor into them.

        Rows are filled up to a power of two of steps, so that clients of like sizes share a captured step.
        """
        train, where = client.settings, (client.task, client.round, client.id)
        steps = train.local_epochs * math.ceil(len(client.local_set) / train.batch)
        rng = partial(rng_at, client.seed, "synthetic-batches", *where)
        plan = plan_batches(count, size, steps, client.images.augmentation, rng)
        rows = size * max(2 ** (steps - 1).bit_length(), LEAST_STEPS)
        filled = [values.new_zeros(rows, *values.shape[1:]) for values in plan[:3]]
        for room, values in zip(filled, plan, strict=False):
            room[: len(values)] = values
        return *(room.to(client.device) for room in filled), torch.zeros((), dtype=torch.long, device=client.device)
