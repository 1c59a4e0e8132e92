"""LANDER's synthesis: one generator per task, led by class anchors, with noise from layers redrawn every round."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.core.settings import Settings, setting
from fedfeat.methods.data_free.generator import AnchorGenerator
from fedfeat.methods.data_free.losses import BatchNormProbe, adversarial_loss, bounding_loss
from fedfeat.methods.data_free.pool import SyntheticPool, mapped
from fedfeat.methods.data_free.synthesis import (
    SynthesisContext,
    Views,
    adam,
    best_images,
    distil,
    new_student,
    pool_batches,
)
from fedfeat.models import Network

FIRST_MEAN, FIRST_STD = 0.5, 0.2


class LanderGenerationSettings(Settings):
    """How the server makes images from class anchors."""

    default_origin = "released code"

    rounds: int = setting(
        40,
        "rounds that are stored; the pool has rounds x batch images",
        origin="paper of FedCBDR, 10,240 images; the released code cuts 41 batches to 10,000",
        ge=1,
    )
    warmup: int = setting(10, "rounds before the first one that is stored", ge=0)
    batch: int = setting(256, "images made per round", ge=2)
    steps: int = setting(40, "steps per round", ge=1)
    code: int = setting(256, "width of the noisy layers' output", ge=1)
    lr: float = setting(2e-3, "learning rate of the generator", gt=0)
    one_hot: float = setting(0.5, "weight of the wanted class", ge=0)
    batch_norm: float = setting(1.0, "weight of BatchNorm's statistics", ge=0)
    adversarial: float = setting(1.0, "weight of what the student has not learned yet", ge=0)
    adversarial_delay: int = setting(2, "rounds after the warm-up before that weight counts", ge=0)
    input_statistics: Literal["learned", "data"] = setting(
        "learned", "what generated images are normalised by: learned mean and std, or the data set's"
    )
    lr_statistics: float = setting(0.01, "learning rate of the learned mean and std", ge=0)
    student_steps: int = setting(50, "steps of the student per stored round", ge=0)
    student_batch: int = setting(128, "images per step of the student", ge=2)
    student_lr: float = setting(0.1, "learning rate of the student", gt=0)
    temperature: float = setting(20.0, "temperature of the student's loss", gt=0)


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
            classes, dim = anchors.shape
            generator = AnchorGenerator(dim, settings.code, settings.batch, context.image_shape, classes)
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
        views = Views(self.context, self.settings.batch)

        def forward() -> tuple[Tensor, Tensor]:
            images = self.generator(wanted)
            return images, self._loss(self._normalise(views.of(images)), labels, wanted, student)

        # The noisy layers are new, so moments of their old gradients would mislead: a fresh optimiser per round.
        of_statistics = {"params": [self.mean, self.std], "lr": self.settings.lr_statistics}
        best = best_images(
            forward,
            adam([{"params": self.generator.parameters()}, of_statistics], self.settings.lr),
            self.probe,
            self.settings.steps,
            draw=lambda: views.draw(rng),
            touched=list(self.generator.buffers()),
            repeat=self.context.repeat,
        )
        return best, labels

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
