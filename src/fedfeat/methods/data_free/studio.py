"""The end of a task on the server: a studio with the frozen model in it, a pool of images, a picture of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.method import Op
from fedfeat.algorithm.repeat import Repeat, as_it_is
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.rng import int_at, rng_at
from fedfeat.data.augment import DeviceImages, plan_epoch
from fedfeat.methods.data_free.generator import ImageShape
from fedfeat.methods.data_free.pictures import class_grid, write_picture
from fedfeat.methods.data_free.pool import POOL, Pool, varied
from fedfeat.methods.data_free.replay import PREVIOUS_MODEL
from fedfeat.models import Network

AGREEMENT = "synthetic_agreement"


@dataclass(frozen=True)
class Studio:
    """What images are made from: the frozen model, the real images' shape and scale, and where draws come from."""

    teacher: Network
    images: DeviceImages  # never their content
    num_classes: int
    class_names: tuple[str, ...]
    seed: int
    task: int
    repeat: Repeat = as_it_is

    @property
    def image_shape(self) -> ImageShape:
        """Height, width and channels."""
        height, width, channels = self.images.images.shape[1:]
        return int(height), int(width), int(channels)

    @property
    def device(self) -> torch.device:
        """Where images are made."""
        return self.images.device

    def draws(self, purpose: str, *where: int) -> np.random.Generator:
        """Return the generator at an address of this task."""
        return rng_at(self.seed, purpose, self.task, *where)

    def seed_of(self, purpose: str) -> int:
        """Return a plain seed at an address of this task."""
        return int_at(self.seed, purpose, self.task)

    def pixels(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Crop and flip generated images [B, C, H, W] in 0..1: pixels [B, H, W, C] in 0..255, with a gradient."""
        augmentation = replace(self.images.augmentation, brightness=0.0)
        draws = plan_epoch(rng, len(images), augmentation)
        return varied(images.permute(0, 2, 3, 1) * 255, draws.crops, draws.flips, augmentation)


Synthesis = Callable[[Studio], Pool]


class Generation:
    """Fills a pool of synthetic images of all seen classes and shares it; not needed after the last task."""

    after_last = False

    def __init__(self, synthesis: Synthesis) -> None:
        self.synthesis = synthesis

    def ops(self) -> dict[str, Op]:
        """Clients are not asked for anything."""
        return {}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Make the pool from the model that the task ended with."""
        server = task_end.server
        studio = Studio(
            teacher=server.frozen(PREVIOUS_MODEL, task_end.weights, task_end.task),
            images=server.images,
            num_classes=server.seen.num_classes,
            class_names=server.class_names,
            seed=task_end.seed,
            task=task_end.task,
            repeat=server.repeat,
        )
        pool = self.synthesis(studio)
        server.progress.share(POOL, pool.images)
        server.progress.numbers[AGREEMENT] = agreement(studio, pool)
        if server.folder is not None:
            path = server.folder / "pictures" / f"task-{task_end.task + 1}.png"
            write_picture(path, class_grid(pool.images, pool.labels, studio.num_classes))


@torch.no_grad()
def agreement(studio: Studio, pool: Pool) -> float:
    """Return the share of the pool that the frozen model, seeing it as clients do, puts into the intended class."""
    right = 0
    for batch, labels in zip(pool.batches, pool.aims, strict=True):
        predicted = studio.teacher(studio.images.normalise(batch.float())).logits.argmax(dim=1)
        right += int((predicted == labels).sum())
    return right / len(pool.labels)
