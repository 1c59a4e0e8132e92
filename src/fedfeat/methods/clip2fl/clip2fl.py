r"""CLIP2FL (AAAI 2024): a frozen CLIP teaches clients, and helps the server to a balanced classifier.

Clients distil CLIP's zero-shot predictions and send the gradient of a linear classifier for each of their classes. The
server makes features that cause the same gradients and lie near CLIP's text features, re-trains a classifier on them,
and evaluates with it; training itself goes on with the averaged classifier.

Objective:
    With CLIP's scores $q_c = 100\,\cos(\text{image}, \text{text}_c)$ and the last re-trained classifier $W, b$:

    $$
    \begin{aligned}
    \text{client:} \quad & L = L_{\mathrm{base}} + \alpha\,T^2\,\operatorname{KL}\left(
    \operatorname{softmax}(q / T) \parallel \operatorname{softmax}(z / T) \right) \\
    \text{sent:} \quad & g_c = \frac{1}{n_c} \sum_{x :\, y = c} \left(
    \operatorname{softmax}(W f + b) - e_c \right) f^{\top} \\
    \text{features:} \quad & \sum_{\text{rows}}
    \left( 1 - \cos(h_c, g_c) \right) + \eta\,\mathrm{CE}(\left\langle v, \text{text} \right\rangle / T_p, c) \\
    \text{server:} \quad & \mathrm{CE} \text{ on the features, for a fresh classifier, which predicts}
    \end{aligned}
    $$

    $g_c$ is computed on the received backbone, before training, and for the bias without $f^{\top}$. $h_c$ is the
    gradient that the synthetic features $v$ of class $c$ cause, and $T_p$ is `prototype_temperature`.

Deviations:
    - Only seen classes compete in the teacher's answers and among the text features.
    - The teacher's view of an image is computed once, which is exact, since it sees no augmentation.
    - Where the backbone's features are not as wide as CLIP's, a linear layer on the server bridges the two; the
      released code widens the backbone instead.
    - Underscores in class names become spaces. Augmentations are drawn from the run's seed, not from the clock.
    - The published average weights clients by their samples; here `train.aggregation` decides.

Run:
    fedcbdr+clip2fl --set clip2fl.teacher.backend=cache --set clip2fl.teacher.path=FEATURES.safetensors
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method, Prediction, Reference, ReferenceFunction, linear_head
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.step import Known, LossTerm, Seen, Step
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload
from fedfeat.core.settings import setting
from fedfeat.methods.clip2fl.client import BIAS, SENDS, WEIGHT, GradientsByClass, GradientSettings
from fedfeat.methods.clip2fl.server import FederatedFeatures, ServerSettings
from fedfeat.methods.clip2fl.teacher import Teacher, TeacherSettings, make_teacher
from fedfeat.models import Network, Outputs

TEACHER = "clip2fl.teacher"
LOGIT_SCALE = 100.0  # of CLIP's cosines


class CLIP2FLSettings(GradientSettings, ServerSettings):
    """CLIP2FL: distillation, gradients of classes, and the server's step."""

    alpha: float = setting(1.0, "weight of the distillation", ge=0)
    temperature: float = setting(3.0, "temperature of the distillation", gt=0)
    teacher: TeacherSettings = Field(default_factory=TeacherSettings, description="where CLIP comes from")


class RetrainedClassifier(Prediction):
    """Predicts with the re-trained classifier."""

    name, label = "clip2fl", "re-trained"

    def __call__(self, network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
        """Return its logits; those of the averaged classifier while there is none for these classes."""
        weight = known.tensors.get(WEIGHT)
        if weight is None or len(weight) != seen.num_classes:
            return outputs.logits
        return F.linear(outputs.features, weight, known.tensors[BIAS])


@addon("clip2fl", CLIP2FLSettings, sends=SENDS, prediction=RetrainedClassifier)
def clip2fl(method: Method, settings: CLIP2FLSettings) -> Method:
    """CLIP2FL: distillation from a frozen CLIP, and a classifier re-trained on federated features."""
    if method.head is not linear_head or method.corrects:
        raise ConfigError(
            "method: clip2fl re-trains a linear classifier to predict with, and another part has replaced the head or "
            "the prediction already; use one of them, such as fedcbdr+clip2fl"
        )
    teacher = make_teacher(settings.teacher)

    def distilled(step: Step) -> Tensor:
        return distillation(step.logits, step.references[TEACHER], settings.temperature)

    return replace(
        method,
        terms=(*method.terms, LossTerm("clip", distilled, settings.alpha)),
        references=(*method.references, TeacherLogits(teacher)),
        statistics=(*method.statistics, GradientsByClass(settings)),
        server_steps=(*method.server_steps, FederatedFeatures(settings, teacher)),
        predict=RetrainedClassifier(),
        notes=(*method.notes, f"teacher={teacher.identity}", *_deviations(settings)),
    )


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return ``T^2 KL(teacher || student)`` at temperature T, averaged over the batch."""
    student = F.log_softmax(logits / temperature, dim=1)
    target = F.log_softmax(teacher / temperature, dim=1)
    return temperature**2 * F.kl_div(student, target, reduction="batchmean", log_target=True)


class TeacherLogits(Reference):
    """The teacher's logits of every local sample: it sees no augmentation, so once per local update is exact."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher

    def start(self, client: Client, request: Payload) -> ReferenceFunction:
        """Return a function that finds the logits of the batch at work."""
        local_set = client.local_set
        vectors = self.teacher.images(client.images, local_set, client.class_names).to(client.device)
        logits = LOGIT_SCALE * vectors @ self.teacher.text(client.class_names).to(client.device).T
        place = torch.zeros(len(client.images), dtype=torch.long, device=client.device)
        place[local_set] = torch.arange(len(local_set), device=client.device)
        return lambda images: {TEACHER: logits[place[client.batch]]}


def _deviations(settings: CLIP2FLSettings) -> tuple[str, ...]:
    """Name what makes the server step other, mostly cheaper, than the published one."""
    published = type(settings)()
    names = [*GradientSettings.model_fields, *ServerSettings.model_fields]
    changed = [f"{n}={getattr(settings, n)}" for n in names if getattr(settings, n) != getattr(published, n)]
    return (f"clip2fl departs from the published server step: {', '.join(changed)}",) if changed else ()
