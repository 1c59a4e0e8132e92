"""LANDER's synthesis: one generator per task, led by class anchors, with noise from layers redrawn every round."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedfeat.core.settings import Settings
from fedfeat.methods.data_free.generator import AnchorGenerator
from fedfeat.methods.data_free.losses import BatchNormProbe, adversarial_loss, bounding_loss
from fedfeat.methods.data_free.pool import SyntheticPool, mapped
from fedfeat.methods.data_free.synthesis import SynthesisContext, best_images, distil, new_student, pool_batches
from fedfeat.models import Network

BETAS = (0.5, 0.999)
FIRST_MEAN, FIRST_STD = 0.5, 0.2


class LanderGenerationSettings(Settings):
    """How the server makes images from class anchors."""

    rounds: int = Field(40, ge=1, description="rounds that are stored; the pool has rounds x batch images")
    warmup: int = Field(10, ge=0, description="rounds before the first one that is stored")
    batch: int = Field(256, ge=2, description="images made per round")
    steps: int = Field(40, ge=1, description="steps per round")
    code: int = Field(256, ge=1, description="width of the noisy layers' output")
    lr: float = Field(2e-3, gt=0, description="learning rate of the generator")
    one_hot: float = Field(0.5, ge=0, description="weight of the wanted class")
    batch_norm: float = Field(1.0, ge=0, description="weight of BatchNorm's statistics")
    adversarial: float = Field(1.0, ge=0, description="weight of what the student has not learned yet")
    adversarial_delay: int = Field(2, ge=0, description="rounds after the warm-up before that weight counts")
    input_statistics: Literal["learned", "data"] = Field(
        "learned", description="what generated images are normalised by: learned mean and std, or the data set's"
    )
    lr_statistics: float = Field(0.01, ge=0, description="learning rate of the learned mean and std")
    student_steps: int = Field(50, ge=0, description="steps of the student per stored round")
    student_batch: int = Field(128, ge=2, description="images per step of the student")
    student_lr: float = Field(0.1, gt=0, description="learning rate of the student")
    temperature: float = Field(20.0, gt=0, description="temperature of the student's loss")


class Bound(NamedTuple):
    """The ball around an anchor: its radius, and what leaving it costs."""

    radius: float
    weight: float


def balanced_labels(num_classes: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return every class equally often, and the rest at random."""
    whole = np.tile(np.arange(num_classes), size // num_classes)
    return np.concatenate([whole, rng.integers(0, num_classes, size - len(whole))])


def synthesise(
    context: SynthesisContext, settings: LanderGenerationSettings, anchors: Tensor, bound: Bound
) -> SyntheticPool:
    """Fill a pool from a frozen model; ``anchors`` has a row per seen class."""
    anchored = AnchoredGenerator(context, settings, anchors, bound)
    student = new_student(context)
    pool = SyntheticPool()
    for round in range(settings.warmup + settings.rounds):
        opposed = round >= settings.warmup + settings.adversarial_delay
        images, labels = anchored.make_batch(round, student if opposed else None)
        if round < settings.warmup:
            continue
        pool.add(images, labels)
        distil(
            student,
            context,
            pool_batches(context, pool, settings.student_batch, round),
            torch.optim.SGD(student.parameters(), lr=settings.student_lr, momentum=0.9, weight_decay=2e-4),
            steps=settings.student_steps,
            temperature=settings.temperature,
            mapping_weight=bound.weight,
        )
    return pool


class AnchoredGenerator:
    """The generator of one task, the input statistics it learns, and what it has seen so far."""

    def __init__(
        self, context: SynthesisContext, settings: LanderGenerationSettings, anchors: Tensor, bound: Bound
    ) -> None:
        self.context, self.settings, self.anchors, self.bound = context, settings, anchors, bound
        self.probe = BatchNormProbe(context.teacher)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed_of("generator"))
            generator = AnchorGenerator(anchors.shape[1], settings.code, settings.batch, context.image_shape)
        self.generator = generator.to(context.device).train()
        channels = context.image_shape[2]
        self.mean = torch.full((channels,), FIRST_MEAN, device=context.device, requires_grad=True)
        self.std = torch.full((channels,), FIRST_STD, device=context.device, requires_grad=True)

    def make_batch(self, round: int, student: Network | None) -> tuple[Tensor, Tensor]:
        """Return the images of lowest loss of one round, and the classes they were meant for."""
        rng = self.context.rng("synthesis", round)
        labels = torch.from_numpy(balanced_labels(self.context.num_classes, self.settings.batch, rng))
        labels = labels.to(self.context.device)
        wanted = self.anchors[labels]
        self.generator.noise.redraw(rng)
        # The noisy layers are new, so moments of their old gradients would mislead: a fresh optimiser per round.
        groups: list[dict[str, Any]] = [
            {"params": self.generator.parameters()},
            {"params": [self.mean, self.std], "lr": self.settings.lr_statistics},
        ]

        def forward() -> tuple[Tensor, Tensor]:
            images = self.generator(wanted)
            return images, self._loss(self._normalise(self.context.pixels(images, rng)), labels, wanted, student)

        optimiser = torch.optim.Adam(groups, lr=self.settings.lr, betas=BETAS)
        return best_images(forward, optimiser, self.probe, self.settings.steps), labels

    def _normalise(self, pixels: Tensor) -> Tensor:
        if self.settings.input_statistics == "data":
            return self.context.images.normalise(pixels)
        return ((pixels / 255 - self.mean) / self.std).permute(0, 3, 1, 2)

    def _loss(self, inputs: Tensor, labels: Tensor, wanted: Tensor, student: Network | None) -> Tensor:
        s, outputs = self.settings, self.context.teacher(inputs)
        loss = s.one_hot * F.cross_entropy(outputs.logits, labels) + s.batch_norm * self.probe.loss()
        found = mapped(self.context.teacher, outputs.features)
        loss = loss + self.bound.weight * bounding_loss(found, wanted, self.bound.radius)
        if student is None or s.adversarial == 0:
            return loss
        return loss + s.adversarial * adversarial_loss(student(inputs).logits, outputs.logits)
