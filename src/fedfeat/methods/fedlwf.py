r"""FedLwF: learning without forgetting (Li and Hoiem, ECCV 2016) inside federated averaging.

On the images of a new task the outputs for old classes are kept close to those of the previous task's final model,
which every client already has. No data are kept.

Objective:
    $$
    \begin{aligned}
    \text{task 1:} \quad & L = \mathrm{CE}(z, y) \\
    \text{afterwards:} \quad & L = \mathrm{CE}(z_{\mathrm{new}}, y) + \lambda\,\mathrm{KD}(z_{\mathrm{old}},
    z^{\mathrm{previous}}) \\
    & \mathrm{KD}(s, t) = - \frac{1}{B} \sum_{x=1}^{B} \sum_c
    \operatorname{softmax}(t_x / T)_c \,\log\,\operatorname{softmax}(s_x / T)_c
    \end{aligned}
    $$

    $T$ is the temperature and $B$ the size of the batch. There is no factor $T^2$.

Deviations:
    - The released code of this baseline trains at a constant 0.01; here the run decides.
    - A task with one new class uses all classes in the first term, since a softmax over one class has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import soft_cross_entropy
from fedfeat.algorithm.method import NEW_CLASS_CROSS_ENTROPY, Capturable, Method, Reference, ReferenceFunction
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import PREVIOUS_MODEL
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.payload import Payload
from fedfeat.core.settings import Settings, setting

TEACHER_LOGITS, TEACHER_FEATURES = "teacher_logits", "teacher_features"


class FedLwFSettings(Settings):
    """Settings of FedLwF."""

    default_origin = "released code (TARGET, LANDER)"

    weight: float = setting(3.0, "weight of the distillation loss", ge=0, alias="lambda")
    temperature: float = setting(2.0, "softens teacher and student", gt=0)


@base("fedlwf", FedLwFSettings, sends=(PREVIOUS_MODEL,))
def fedlwf(settings: FedLwFSettings) -> Method:
    """FedLwF: the previous global model teaches the old classes on new images."""

    def distilled(step: Step) -> Tensor:
        # The teacher has one logit per class that it knew: its columns are the student's first.
        teacher = step.references[TEACHER_LOGITS]
        return soft_cross_entropy(step.logits[:, : teacher.shape[1]], teacher, settings.temperature)

    return Method(
        "fedlwf",
        loss=NEW_CLASS_CROSS_ENTROPY,
        terms=(LossTerm("kd", distilled, settings.weight, from_task=2),),
        references=(PreviousModel(),),
        keeps_previous_model=True,
        distils=True,
    )


class PreviousModel(Reference):
    """The previous task's final model as a teacher: in evaluation mode, so that new images do not move it."""

    alike = True

    def __init__(self, *, features: bool = False) -> None:
        self.features = features

    def start(self, client: Client, request: Payload) -> ReferenceFunction | None:
        """Return the teacher's view of a batch: its logits of the classes that it knew, and its features if wanted."""
        if client.task == 0:
            return None
        teacher = client.frozen("teacher", client.shared["previous_model"], client.task - 1)

        @torch.no_grad()
        def teach(images: Tensor) -> dict[str, Tensor]:
            features, logits = teacher(images)
            return {TEACHER_LOGITS: logits, **({TEACHER_FEATURES: features} if self.features else {})}

        return Capturable(teach, by_image=True)
