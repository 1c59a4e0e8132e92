r"""Distillation beside replay: the model that the previous task ended with teaches the old classes.

It sees every image of a batch, new ones and exemplars (as in iCaRL, Rebuffi et al., CVPR 2017, and LUCIR, Hou et al.,
CVPR 2019; weighted by the share of old classes as in BiC, Wu et al., CVPR 2019). Every client has this model anyway
when a task begins, so nothing more is sent; a step costs one more forward pass.

Objective:
    $$
    L = L_{\mathrm{base}} + \lambda\,\frac{C_{\mathrm{old}}}{C}\;
    \mathrm{KL}\left( \operatorname{softmax}(z^{\mathrm{previous}} / T) \parallel
    \operatorname{softmax}(z_{\mathrm{old}} / T) \right)
    $$

    from task 2 on, a mean over the batch. $C_{\mathrm{old}}$ of the $C$ seen classes are old. With
    `weighting = "constant"` the factor $C_{\mathrm{old}} / C$ is left out. With `features` above 0 the directions of
    features are taught too (as in LUCIR): that number, times the same factor, times the mean of one minus the cosine
    between the feature of the teacher and that of the student.

Deviations:
    - There is no factor $T^2$, as in the other methods here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.sent import PREVIOUS_MODEL
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.errors import ConfigError
from fedfeat.core.settings import Settings, setting
from fedfeat.methods.fedlwf import TEACHER_FEATURES, TEACHER_LOGITS, PreviousModel


class DistilSettings(Settings):
    """Settings of distillation beside replay."""

    weight: float = setting(
        2.0,
        "weight of the distillation loss",
        origin="validation splits of CIFAR-10 and CIFAR-100",
        ge=0,
        alias="lambda",
    )
    weighting: Literal["share", "constant"] = setting(
        "share", "share: the weight times the share of old classes; constant: the weight", origin="BiC"
    )
    temperature: float = setting(2.0, "softens teacher and student", origin="LwF", gt=0)
    features: float = setting(0.0, "weight of the cosine distance to the teacher's features", origin="a choice", ge=0)


@addon("distil", DistilSettings, sends=(PREVIOUS_MODEL,), examples=("fedcbdr+etf+balanced+distil",))
def distil(method: Method, settings: DistilSettings) -> Method:
    """The previous global model teaches the old classes on every image of a batch."""
    if method.distils:
        raise ConfigError(
            f"method: the previous model teaches in {method.name!r} already; leave distil out, or choose another base"
        )

    def taught(step: Step) -> Tensor:
        teacher = step.references[TEACHER_LOGITS]
        return kl_to_teacher(step.logits[:, : teacher.shape[1]], teacher, settings.temperature) * share(step)

    def directed(step: Step) -> Tensor:
        return cosine_distance(step.features, step.references[TEACHER_FEATURES]) * share(step)

    def share(step: Step) -> float:
        old = step.references[TEACHER_LOGITS].shape[1]
        return old / step.num_classes if settings.weighting == "share" else 1.0

    terms = [LossTerm("distil", taught, settings.weight, from_task=2)]
    if settings.features:
        terms.append(LossTerm("distil_features", directed, settings.features, from_task=2))
    return replace(
        method,
        terms=(*method.terms, *terms),
        references=(*method.references, PreviousModel(features=settings.features > 0)),
        keeps_previous_model=True,
        distils=True,
    )


def kl_to_teacher(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return ``KL(softmax(teacher / T) || softmax(student / T))``, a mean over the batch."""
    log_student, log_teacher = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=1).mean()


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return one minus the cosine between two features, a mean over the batch."""
    return 1 - F.cosine_similarity(student, teacher, dim=1).mean()
