"""The end of a task on the server: a pool of images from the frozen model, a student that shows what they lack."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.method import TaskEndStep
from fedfeat.algorithm.step import Repeat, Work, as_it_is
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.errors import MissingExtra
from fedfeat.core.files import write_atomically
from fedfeat.core.rng import int_at, rng_at
from fedfeat.data.augment import DeviceImages, plan_epoch
from fedfeat.data.resize import require_pillow
from fedfeat.methods.data_free.generator import ImageShape
from fedfeat.methods.data_free.losses import BatchNormProbe, softened_divergence
from fedfeat.methods.data_free.pool import (
    POOL,
    PREVIOUS_MODEL,
    SyntheticPool,
    crops_and_flips,
    endless_batches,
    mapped,
    varied,
)
from fedfeat.models import Network

AGREEMENT = "synthetic_agreement"
COLUMNS = 12  # of the picture of a pool
MOST_ROWS = 100
LEAST_PIXELS = 48  # small images are enlarged to about this size
GAP = 2
WHITE = 255


@dataclass(frozen=True)
class SynthesisContext:
    """What images are made from: the frozen model, the real images' shape and scale, and an address for randomness."""

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

    def rng(self, purpose: str, *where: int) -> np.random.Generator:
        """Return the generator at an address of this task."""
        return rng_at(self.seed, purpose, self.task, *where)

    def seed_of(self, purpose: str) -> int:
        """Return a plain seed at an address of this task."""
        return int_at(self.seed, purpose, self.task)


class Views:
    """Crops and mirrorings of generated images, drawn to the same place for every step."""

    def __init__(self, context: SynthesisContext, count: int) -> None:
        self.augmentation = crops_and_flips(context.images.augmentation)
        self.crops = torch.zeros(count, 2, dtype=torch.long, device=context.device)
        self.flips = torch.zeros(count, dtype=torch.bool, device=context.device)

    def draw(self, rng: np.random.Generator) -> None:
        """Draw those of the next step."""
        plan = plan_epoch(rng, len(self.flips), self.augmentation)
        self.crops.copy_(plan.crops)
        self.flips.copy_(plan.flips)

    def of(self, images: Tensor) -> Tensor:
        """Return images [B, C, H, W] in 0..1 as pixels [B, H, W, C] in 0..255, with a gradient."""
        return varied(images.permute(0, 2, 3, 1) * 255, self.crops, self.flips, self.augmentation)


Synthesis = Callable[[SynthesisContext], SyntheticPool]


class Generation(TaskEndStep):
    """Fills a pool of synthetic images of all seen classes and shares it; not needed after the last task."""

    def __init__(self, synthesis: Synthesis) -> None:
        self.synthesis = synthesis

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Make the pool from the model that the task ended with."""
        server = task_end.server
        context = SynthesisContext(
            teacher=server.frozen(PREVIOUS_MODEL, task_end.weights, task_end.task),
            images=server.images,
            num_classes=server.seen.num_classes,
            class_names=server.class_names,
            seed=task_end.seed,
            task=task_end.task,
            repeat=server.repeat,
        )
        pool = self.synthesis(context)
        server.progress.share(POOL, pool.images)
        server.progress.numbers[AGREEMENT] = agreement(context, pool)
        if server.folder is not None:
            path = server.folder / "pictures" / f"task-{task_end.task + 1}.png"
            write_picture(path, class_grid(pool.images, pool.labels, context.num_classes))


def adam(groups: list[dict[str, Any]], lr: float) -> torch.optim.Adam:
    """Return the optimiser of a generator, which keeps its count of steps where a captured one can go on counting."""
    return torch.optim.Adam(groups, lr=lr, betas=(0.5, 0.999), fused=True, capturable=True)


def best_images(
    forward: Callable[[], tuple[Tensor, Tensor]],
    optimiser: torch.optim.Optimizer,
    probe: BatchNormProbe,
    steps: int,
    *,
    draw: Work,
    touched: Sequence[Tensor],
    repeat: Repeat,
    after_backward: Work = lambda: None,
) -> Tensor:
    """Train a generator for one round and return its images of lowest loss; ``forward`` gives images and loss.

    :param draw: draws what the next step is to see.
    :param touched: what a step changes besides what the optimiser trains and keeps.
    """
    best: list[Tensor] = []  # images, and their loss

    def step() -> None:
        images, loss = forward()
        with torch.no_grad():
            if not best:
                best[:] = images.clone(), loss.clone()
            better = loss < best[1]
            for kept, new in zip(best, (images, loss), strict=True):
                kept.copy_(torch.where(better, new, kept))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        after_backward()
        optimiser.step()

    with probe.watching(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*capturable=True")  # the first step runs as it is
        repeated(step, steps, draw, lambda: [*tensors_of(optimiser), *touched, *best], repeat)
    probe.remember()
    return best[0]


def repeated(work: Work, times: int, prepare: Work, touched: Callable[[], Sequence[Tensor]], repeat: Repeat) -> None:
    """Do work on fixed tensors so many times, each after ``prepare``; the first time may make what is touched."""
    for time in range(times):
        prepare()
        if time == 1:
            work = repeat(work, touched())
        work()


def tensors_of(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """Return what an optimiser trains, and what it keeps."""
    trained = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    kept = [value for state in optimiser.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [*trained, *kept]


def new_student(context: SynthesisContext) -> Network:
    """Return a copy that knows nothing: Xavier normal weights, zero biases, BatchNorm scales from N(1, 0.02)."""
    student = copy.deepcopy(context.teacher)
    generator = torch.Generator().manual_seed(context.seed_of("student"))
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.ndim == 0:
                continue  # the scale of a cosine head, which means the same for every network
            drawn = torch.zeros(parameter.shape)
            if parameter.ndim > 1:
                nn.init.xavier_normal_(drawn, generator=generator)
            parameter.copy_(drawn)
        for module in student.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.zero_()
                module.running_var.fill_(1)
                module.weight.copy_(torch.normal(1.0, 0.02, module.weight.shape, generator=generator))
    return student.eval().requires_grad_(False)


def pool_batches(context: SynthesisContext, pool: SyntheticPool, batch: int, round: int) -> Iterator[Tensor]:
    """Yield the batches that the student learns from after a round of synthesis."""
    return endless_batches(pool.images, batch, context.images, partial(context.rng, "student", round))


def distil(
    student: Network,
    context: SynthesisContext,
    batches: Iterator[Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    steps: int,
    temperature: float,
    mapping_weight: float = 0.0,
) -> None:
    """Train the student on batches of the pool, all of one size; it is frozen again afterwards."""
    if steps == 0:
        return
    teacher = context.teacher
    student.train().requires_grad_(True)
    images = torch.empty(0)

    def prepare() -> None:
        nonlocal images
        batch = next(batches)
        images = batch.clone() if not len(images) else images.copy_(batch)  # every later one comes to the same place

    def step() -> None:
        with torch.no_grad():
            wanted = teacher(images)
        found = student(images)
        loss = softened_divergence(found.logits, wanted.logits, temperature)
        if mapping_weight:
            with torch.no_grad():
                wanted_map = mapped(teacher, wanted.features)
            loss = loss + mapping_weight * F.mse_loss(mapped(student, found.features), wanted_map)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    repeated(step, steps, prepare, lambda: [*tensors_of(optimiser), *student.buffers()], context.repeat)
    student.eval().requires_grad_(False)


@torch.no_grad()
def agreement(context: SynthesisContext, pool: SyntheticPool) -> float:
    """Return the share of the pool that the frozen model, seeing it as clients do, puts into the intended class."""
    right = 0
    for batch, labels in zip(pool.batches, pool.intended, strict=True):
        predicted = context.teacher(context.images.normalise(batch.float())).logits.argmax(dim=1)
        right += int((predicted == labels).sum())
    return right / len(pool.labels)


def class_grid(images: Tensor, labels: Tensor, num_classes: int, columns: int = COLUMNS) -> np.ndarray:
    """Arrange the newest images of each class in a row of its own: uint8 [H, W, C], missing ones left white."""
    _, height, width, channels = images.shape
    zoom = max(1, round(LEAST_PIXELS / max(height, width)))
    cell = height * zoom + GAP, width * zoom + GAP
    rows = min(num_classes, MOST_ROWS)
    grid = np.full((rows * cell[0] + GAP, columns * cell[1] + GAP, channels), WHITE, dtype=np.uint8)
    for row in range(rows):
        newest = torch.nonzero(labels == row).flatten()[-columns:]
        for column, image in enumerate(images[newest].cpu().numpy()):
            top, left = row * cell[0] + GAP, column * cell[1] + GAP
            large = image.repeat(zoom, axis=0).repeat(zoom, axis=1)
            grid[top : top + height * zoom, left : left + width * zoom] = large
    return grid


def write_picture(path: Path, grid: np.ndarray) -> None:
    """Write a PNG; without Pillow say so and go on, since nothing else depends on it."""
    try:
        image = require_pillow("writing pictures")
    except MissingExtra as error:
        warnings.warn(f"{path}: not written; {error}", stacklevel=2)
        return
    buffer = io.BytesIO()
    image.fromarray(grid[..., 0] if grid.shape[2] == 1 else grid).save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
