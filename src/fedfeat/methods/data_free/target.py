r"""TARGET (Zhang et al., ICCV 2023): exemplar-free learning with images that the server distils from its own model.

At the end of a task the server trains a generator against the frozen global model and sends a pool of synthetic
images of all seen classes; in the next task clients keep the old model's answers on them while they learn new data.

Objective:
    With real images $x$, synthetic images $u$, the teacher $t$ and the student $s$:

    $$
    \begin{aligned}
    \text{task 1:} \quad & L = \mathrm{CE}(z, y) \\
    \text{afterwards:} \quad & L = \mathrm{CE}(z(x)_{\mathrm{new}}, y) +
    \lambda_{\mathrm{kd}}\,\mathrm{KD}(z(u)_{\mathrm{old}}, z^{\mathrm{previous}}(u)) \\
    \text{generator:} \quad & \lambda_{\mathrm{bn}} L_{\mathrm{BN}} + \lambda_{\mathrm{oh}}\,\mathrm{CE}(t(u),
    \text{wanted class}) + \lambda_{\mathrm{adv}} L_{\mathrm{adv}} \\
    & L_{\mathrm{BN}} = \sum_{\text{layers}} \left| \mu - \mu_{\mathrm{running}} \right| + \left| \sigma^2 -
    \sigma^2_{\mathrm{running}} \right| \\
    & L_{\mathrm{adv}} = - \operatorname{mean}\left( [\arg\max s = \arg\max t]\,\operatorname{KL}(t \parallel s)
    \right) \\
    \text{student:} \quad & T^2\,\operatorname{KL}(t \parallel s) \text{ on the pool}
    \end{aligned}
    $$

    $L_{\mathrm{adv}}$ is used after the warm-up. $\mathrm{KD}$ is that of `fedlwf`, at `temperature`; the student's
    $T$ is `generation.temperature`. The weights $\lambda$ are `kd`, `batch_norm`, `one_hot` and `adversarial`.

Deviations:
    - A client goes through all its data and takes synthetic batches for as long as it needs them. The released code
      stops at the end of the shorter of the two.
    - The released file fixes preset and normalisation for CIFAR-100; here they follow the data set.
    - Images of 64 pixels and more get 40 rounds instead of 200.
    - All images of the pool are used; the released code cuts it by file name.
    - Synthetic images are cropped and flipped as the data set's own are.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fedfeat.algorithm.losses import soft_cross_entropy
from fedfeat.algorithm.method import NEW_CLASS_CROSS_ENTROPY, Method
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import PREVIOUS_MODEL
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.settings import Settings, setting
from fedfeat.methods.data_free.pool import LOGITS, PREVIOUS_LOGITS, SYNTHETIC_POOL, SyntheticBatches
from fedfeat.methods.data_free.synthesis import Generation
from fedfeat.methods.data_free.target_synthesis import TargetGenerationSettings, synthesise


class TargetSettings(Settings):
    """What clients do with synthetic images, and how the server makes them."""

    default_origin = "released code, its documented command"

    kd: float = setting(25.0, "weight of distillation on synthetic images; try 1 or 5 if new classes suffer", ge=0)
    temperature: float = setting(2.0, "temperature of distillation on clients", origin="released code", gt=0)
    batch: int = setting(
        128,
        "synthetic images per step of a client",
        origin="a choice; the released code derives it from the sizes of pool and data",
        ge=1,
    )
    generation: TargetGenerationSettings = Field(
        default_factory=TargetGenerationSettings, description="the server's side"
    )


@base("target", TargetSettings, sends=(SYNTHETIC_POOL, PREVIOUS_MODEL))
def target(settings: TargetSettings) -> Method:
    """TARGET: the old model's answers on server-made images, new data under a softmax over new classes."""

    def distilled(step: Step) -> Tensor:
        return soft_cross_entropy(step.references[LOGITS], step.references[PREVIOUS_LOGITS], settings.temperature)

    return Method(
        "target",
        loss=NEW_CLASS_CROSS_ENTROPY,
        terms=(LossTerm("kd", distilled, settings.kd, from_task=2),),
        references=(SyntheticBatches(settings.batch),),
        trains_on_references=True,
        keeps_previous_model=True,
        distils=True,
        task_end=(Generation(lambda context: synthesise(context, settings.generation)),),
    )
