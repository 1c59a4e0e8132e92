"""TARGET's synthesis: each round starts from one shared generator, fits a copy, and moves the shared one after it.

The scheme is that of FastDFKD: a batch of images is reached in few steps because the generator is learned as a
starting point (first-order MAML or Reptile).
"""

from __future__ import annotations

import copy
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.core.settings import Settings, setting
from fedfeat.methods.data_free.generator import ImageGenerator
from fedfeat.methods.data_free.losses import BatchNormProbe, adversarial_loss
from fedfeat.methods.data_free.pool import SyntheticPool
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

MetaUpdate = Literal["fomaml", "reptile"]
REPTILE_FACTOR = 67.0
LARGE = 64  # pixels from which the second preset applies


class TargetGenerationSettings(Settings):
    """How the server makes images; what is unset follows the preset for the images' size."""

    default_origin = "released code"

    rounds: int = setting(
        40,
        "synthesis rounds per task; the pool has rounds x batch images",
        origin="paper of FedCBDR, which gives this baseline 10,240 images; the released file runs 10 rounds",
        ge=1,
    )
    batch: int = setting(256, "images made per round, and the batch that the student learns from", ge=2)
    preset: Literal["auto", "small", "large"] = setting(
        "auto",
        "published values for CIFAR or for larger images; auto takes large from 64 pixels on",
        origin="a choice: by image size, with the released values for each",
    )
    latent: int = setting(256, "dimensions of the generator's code", ge=1)
    steps: int | None = setting(None, "steps per round; small 10, large 50", ge=1)
    meta: MetaUpdate | None = setting(None, "how the shared generator follows; small fomaml, large reptile")
    lr: float | None = setting(None, "learning rate of the generator; small 0.002, large 0.0002", gt=0)
    lr_latent: float = setting(0.01, "learning rate of the codes", ge=0)
    one_hot: float | None = setting(None, "weight of the wanted class; small 0.5, large 0.1", ge=0)
    batch_norm: float | None = setting(None, "weight of BatchNorm's statistics; small 10, large 0.1", ge=0)
    adversarial: float = setting(1.0, "weight of what the student has not learned yet", ge=0)
    warmup: int = setting(20, "rounds before the student takes part", ge=0)
    student_steps: int = setting(400, "steps of the student per round; most of the time goes here", ge=0)
    student_lr: float = setting(0.2, "learning rate of the student", gt=0)
    temperature: float | None = setting(None, "temperature of the student's loss; small 20, large 5", gt=0)


class Recipe(NamedTuple):
    """The values that differ between the presets."""

    steps: int
    meta: MetaUpdate
    lr: float
    one_hot: float
    batch_norm: float
    temperature: float


SMALL = Recipe(10, "fomaml", 2e-3, 0.5, 10.0, 20.0)
LARGE_IMAGES = Recipe(50, "reptile", 2e-4, 0.1, 0.1, 5.0)


def recipe_for(settings: TargetGenerationSettings, height: int) -> Recipe:
    """Return the preset for the images' size, with what the settings say in its place."""
    large = settings.preset == "large" or (settings.preset == "auto" and height >= LARGE)
    given = {name: value for name in Recipe._fields if (value := getattr(settings, name)) is not None}
    return (LARGE_IMAGES if large else SMALL)._replace(**given)


def synthesise(context: SynthesisContext, settings: TargetGenerationSettings) -> SyntheticPool:
    """Fill a pool from a frozen model."""
    recipe = recipe_for(settings, context.image_shape[0])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed_of("generator"))
        generator = ImageGenerator(settings.latent, context.image_shape).to(context.device)
    shared = SharedGenerator(context, settings, recipe, generator)
    student = new_student(context)
    optimiser = torch.optim.SGD(student.parameters(), lr=settings.student_lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 200, eta_min=2e-4)
    pool = SyntheticPool()
    for round in range(settings.rounds):
        has_student = round >= settings.warmup
        pool.add(*shared.make_batch(round, student if has_student else None))
        if has_student and settings.student_steps:
            batches = pool_batches(context, pool, settings.batch, round)
            steps, temperature = settings.student_steps, recipe.temperature
            distil(student, context, batches, optimiser, steps=steps, temperature=temperature)
            schedule.step()
    return pool


class SharedGenerator:
    """The generator that every round starts from, and what it has seen so far."""

    def __init__(
        self,
        context: SynthesisContext,
        settings: TargetGenerationSettings,
        recipe: Recipe,
        generator: ImageGenerator,
    ) -> None:
        self.context, self.settings, self.recipe, self.generator = context, settings, recipe, generator
        self.probe = BatchNormProbe(context.teacher)
        self.optimiser = torch.optim.Adam(generator.parameters(), lr=recipe.lr * recipe.steps, betas=(0.5, 0.999))

    def make_batch(self, round: int, student: Network | None) -> tuple[Tensor, Tensor]:
        """Return the images of lowest loss of one round, and the classes they were meant for."""
        rng, device = self.context.rng("synthesis", round), self.context.device
        size = self.settings.batch
        codes = torch.from_numpy(rng.standard_normal((size, self.settings.latent)).astype("float32")).to(device)
        labels = torch.from_numpy(rng.integers(0, self.context.num_classes, size)).to(device)
        fast = copy.deepcopy(self.generator).train()
        for parameter in self.generator.parameters():
            parameter.grad = torch.zeros_like(parameter)
        views = Views(self.context, size)

        def forward() -> tuple[Tensor, Tensor]:
            images = fast(codes)
            return images, self._loss(self.context.images.normalise(views.of(images)), labels, student)

        def after_backward() -> None:
            if self.recipe.meta == "fomaml":
                add_gradients(self.generator, fast)

        of_codes = {"params": [codes.requires_grad_()], "lr": self.settings.lr_latent}
        best = best_images(
            forward,
            adam([{"params": fast.parameters()}, of_codes], self.recipe.lr),
            self.probe,
            self.recipe.steps,
            draw=lambda: views.draw(rng),
            touched=[*fast.buffers(), *(p.grad for p in self.generator.parameters() if p.grad is not None)],
            repeat=self.context.repeat,
            after_backward=after_backward,
        )
        if self.recipe.meta == "reptile":
            add_differences(self.generator, fast, REPTILE_FACTOR)
        self.optimiser.step()
        return best, labels

    def _loss(self, inputs: Tensor, labels: Tensor, student: Network | None) -> Tensor:
        logits = self.context.teacher(inputs).logits
        loss = self.recipe.one_hot * F.cross_entropy(logits, labels) + self.recipe.batch_norm * self.probe.loss()
        if student is None or self.settings.adversarial == 0:
            return loss
        return loss + self.settings.adversarial * adversarial_loss(student(inputs).logits, logits)


@torch.no_grad()
def add_gradients(shared: torch.nn.Module, fast: torch.nn.Module) -> None:
    """First-order MAML: the copy's gradients are taken for those of the shared generator."""
    for slow, copied in zip(shared.parameters(), fast.parameters(), strict=True):
        assert slow.grad is not None
        assert copied.grad is not None
        slow.grad += copied.grad


@torch.no_grad()
def add_differences(shared: torch.nn.Module, fast: torch.nn.Module, factor: float) -> None:
    """Reptile: the way from the copy back to the shared generator is the gradient."""
    for slow, copied in zip(shared.parameters(), fast.parameters(), strict=True):
        slow.grad = factor * (slow - copied)
