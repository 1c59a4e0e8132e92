r"""LANDER (Tran et al., CVPR 2024): TARGET with text anchors.

Every class has a fixed vector made from its name. A mapping layer pulls features into a small ball around their
class's anchor, and the server's generator is led by the same anchors, so that synthetic images land where the model
is well defined.

Objective:
    With real images $x$, synthetic images $u$ and the mapping layer $m$:

    $$
    \begin{aligned}
    \text{task 1:} \quad & L = \mathrm{CE}(z, y) + \lambda_b L_b(x) \\
    \text{afterwards:} \quad & L = a \left( \mathrm{CE}(z(x)_{\mathrm{new}}, y) + \lambda_b L_b(x) \right) \\
    & \quad + b \left( \mathrm{KD}(z(u)_{\mathrm{old}}, z^{\mathrm{previous}}(u)) +
    \mathrm{MSE}(m(u), m^{\mathrm{previous}}(u)) \right) \\
    & L_b = \max\left( 0, \mathrm{MSE}(m(x), \text{anchor of } y) - r \right), \text{ one hinge per batch} \\
    & a = \lambda_{\mathrm{current}} \frac{1 + 1 / A}{B}, \quad b = \lambda_{\mathrm{previous}} A B \\
    & A = \log_2\left( \frac{C}{2} + 1 \right), \quad B = \sqrt{\frac{C_{\mathrm{before}}}{C}}
    \end{aligned}
    $$

    The generator's loss is that of `target` plus $\lambda_b L_b$ under the teacher; the student's has
    $\lambda_b\,\mathrm{MSE}$ of the mapped features in addition. $\lambda_b$ is `bound`, $r$ is `radius`.

Deviations:
    - Anchors come from character n-grams of the class names unless you give others. They are put where the published
      ones lie: a common part of norm 8.6 and a variance of 0.04 per dimension around it.
    - A first task with one class is possible; the released code divides by zero there.
    - With fewer than ten classes a noisy layer serves one image of each; with ten, some would be the same image.
    - Synthetic images are cropped and flipped as the data set's own are.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import new_class_cross_entropy, soft_cross_entropy
from fedfeat.algorithm.method import Capturable, Method, Reference, ReferenceFunction, ServerStep
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import PREVIOUS_MODEL, Sent
from fedfeat.algorithm.server import Server
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.payload import Payload
from fedfeat.core.rng import rng_at
from fedfeat.core.settings import Settings, setting
from fedfeat.methods.class_names import TextSettings, check_text, class_features, encoder_name, text_width
from fedfeat.methods.class_names.features import MEAN_NORM, VARIANCE
from fedfeat.methods.data_free.lander_synthesis import Bound, LanderGenerationSettings, synthesise
from fedfeat.methods.data_free.losses import bounding_loss
from fedfeat.methods.data_free.pool import (
    LOGITS,
    MAPPED,
    MAPPING,
    PREVIOUS_LOGITS,
    PREVIOUS_MAPPED,
    SYNTHETIC_POOL,
    SyntheticBatches,
    SyntheticPool,
    mapped,
)
from fedfeat.methods.data_free.synthesis import Generation, SynthesisContext

ANCHORS = "anchors"
TYPICAL_NORM = 9.67  # of the published anchors, which were not normalised


class LanderSettings(Settings):
    """The anchors, how strongly they hold, and how the server makes images."""

    default_origin = "released code"

    radius: float = setting(0.015, "mean squared distance from an anchor that costs nothing", ge=0)
    bound: float = setting(5.0, "weight of the distance beyond the radius", ge=0)
    current: float = setting(0.2, "factor of the losses on new data, from task 2 on", gt=0)
    previous: float = setting(0.4, "factor of the losses on synthetic images", ge=0)
    temperature: float = setting(2.0, "temperature of distillation on clients", gt=0)
    batch: int = setting(128, "synthetic images per step of a client", ge=1)
    text: TextSettings = Field(default_factory=TextSettings, description="what the anchors are made from")
    generation: LanderGenerationSettings = Field(
        default_factory=LanderGenerationSettings, description="the server's side"
    )


def loss_factors(num_old: int, num_classes: int, current: float = 0.2, previous: float = 0.4) -> tuple[float, float]:
    """Return the factors of new data and of synthetic images: the more classes are old, the more the past counts."""
    if num_old == 0:
        return 1.0, 0.0
    growth, share = math.log2(num_classes / 2 + 1), math.sqrt(num_old / num_classes)
    return current * (1 + 1 / growth) / share, previous * growth * share


def class_anchors(settings: TextSettings, names: tuple[str, ...]) -> Tensor:
    """Return one anchor per class, [C, d], at a scale at which the radius has its published meaning.

    The published anchors have a large common part (norm 8.6) and a variance of 0.04 per dimension around it. The
    built-in unit vectors are put there; other features of unit length get the published norm; features that bring
    a scale of their own keep it. Nothing is measured on the classes given, so an anchor stays when others arrive.
    """
    features = class_features(settings, names).features
    dim = features.shape[1]
    if settings.encoder in ("ngrams", "random_orthogonal"):
        common = torch.from_numpy(rng_at(settings.seed, "common-anchor").standard_normal(dim)).float()
        return MEAN_NORM * F.normalize(common, dim=0) + math.sqrt(VARIANCE * dim) * features
    norms = torch.linalg.vector_norm(features, dim=1)
    return TYPICAL_NORM * features if bool((norms - 1).abs().max() < 1e-2) else features


@base(
    "lander",
    LanderSettings,
    sends=(
        SYNTHETIC_POOL,
        Sent("down/train/shared.anchors.*", "anchors of the task's classes, with its first request", ("N", "t")),
        PREVIOUS_MODEL,
    ),
)
def lander(settings: LanderSettings) -> Method:
    """LANDER: TARGET with features and synthetic images held near anchors made from class names."""
    check_text(settings.text)

    def factors(step: Step) -> tuple[float, float]:
        return loss_factors(step.num_old, step.num_classes, settings.current, settings.previous)

    def classified(step: Step) -> Tensor:
        return factors(step)[0] * new_class_cross_entropy(step.logits, step.labels, step.num_old)

    def bounded(step: Step) -> Tensor:
        wanted = step.references[ANCHORS][step.labels]
        return factors(step)[0] * bounding_loss(mapped(step.network, step.features), wanted, settings.radius)

    def distilled(step: Step) -> Tensor:
        return factors(step)[1] * soft_cross_entropy(
            step.references[LOGITS], step.references[PREVIOUS_LOGITS], settings.temperature
        )

    def held(step: Step) -> Tensor:
        return factors(step)[1] * F.mse_loss(step.references[MAPPED], step.references[PREVIOUS_MAPPED])

    def make_pool(context: SynthesisContext) -> SyntheticPool:
        anchors = class_anchors(settings.text, context.class_names).to(context.device)
        return synthesise(context, settings.generation, anchors, Bound(settings.radius, settings.bound))

    return Method(
        "lander",
        loss=LossTerm("ce", classified, new_classes_only=True),
        extras={MAPPING: lambda dim: nn.Linear(dim, text_width(settings.text))},
        terms=(
            LossTerm("bound", bounded, settings.bound),
            LossTerm("kd", distilled, from_task=2),
            LossTerm("map", held, from_task=2),
        ),
        references=(Anchors(), SyntheticBatches(settings.batch, with_mapping=True)),
        trains_on_references=True,
        keeps_previous_model=True,
        distils=True,
        server_steps=(AnchorDelivery(settings.text),),
        task_end=(Generation(make_pool),),
        notes=(f"text_encoder={encoder_name(settings.text)}",),
        refuses={"domains": "it weighs synthetic images by the share of old classes, and none is old"},
    )


class Anchors(Reference):
    """On a client: the anchors of all classes seen so far."""

    def start(self, client: Client, request: Payload) -> ReferenceFunction:
        """Put together what was delivered task by task."""
        anchors = torch.cat([client.shared[_of_task(task)] for task in range(client.task + 1)])
        return Capturable(lambda images, anchors: {ANCHORS: anchors}, (anchors,))


class AnchorDelivery(ServerStep):
    """On the server: sends clients the anchors of new classes, once."""

    def __init__(self, settings: TextSettings) -> None:
        self.settings = settings

    def broadcast(self, server: Server) -> Payload:
        """Share the anchors of a task's classes when it begins."""
        name = _of_task(server.seen.task)
        if name not in server.progress.shared:
            anchors = class_anchors(self.settings, server.class_names)
            server.progress.share(name, anchors[server.seen.num_old :].to(server.images.device))
        return {}


def _of_task(task: int) -> str:
    return f"{ANCHORS}.{task + 1}"
