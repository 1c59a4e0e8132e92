"""FedCBDR (Qi et al., NeurIPS 2025): class-balanced data replay from a global view of masked features.

Clients send rotated features, the server finds leverage scores in their joint space, and exemplars are drawn by
them (global data replay). Training gives old and new logits and samples their own temperature and weight (TTS).

Objective:
    task 1:      L = CE(z, y)
    afterwards:  z' = [z_old / tau_old, z_new / tau_new]
      tts = "code":   L = mean of w_y * CE(z' / tau_y, y)             one mean; tau_y, w_y by the sample's side
      tts = "paper":  L = w_old * mean over old samples of CE(z', y) + w_new * mean over new samples of CE(z', y)
    score of sample j:  squared length of row j of the thin left singular vectors of all clients' features

Deviations:
    - Clients undo their rotation before they take scores. The released code does not, and takes one decomposition per
      client, which amounts to uniform draws; that is mode `repo`.
    - The singular vectors are thin. With the square matrix of the paper's notation all scores would be equal.
    - The rotation over samples is a permutation and then a rotation within blocks of `mask_block` rows: linear in
      the number of samples, still orthogonal, so the scores stay exact.
    - A quota that a client cannot fill goes to others, one by one. The released code fails on a remainder.
    - Features are of images without augmentation, except in mode `repo`.
    - Modes `global` and `class_quota` are additions; the latter tells the server how many images each class has.
"""

from __future__ import annotations

from torch import Tensor

from fedfeat.algorithm.losses import TTSForm, temperature_scaled_cross_entropy
from fedfeat.algorithm.method import Method
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.settings import setting
from fedfeat.methods.fedcbdr.leverage import LeverageChoice, LeverageSettings


class FedCBDRSettings(LeverageSettings):
    """Selection and loss of FedCBDR."""

    tts: TTSForm = setting(
        "code", "form of the temperature-scaled loss: the released code's or the paper's", origin="released code"
    )
    tau_old: float = setting(0.9, "temperature of old logits", origin="paper", gt=0)
    tau_new: float = setting(1.1, "temperature of new logits", origin="paper", gt=0)
    weight_old: float = setting(1.1, "weight of samples of old classes", origin="paper", ge=0)
    weight_new: float = setting(0.9, "weight of samples of new classes", origin="paper", ge=0)


def _by_class(settings: FedCBDRSettings) -> bool:
    return settings.mode == "class_quota"


@base(
    "fedcbdr",
    FedCBDRSettings,
    sends=(
        final_model("masked_features"),
        Sent(
            "up/masked_features/features",
            "features of the finished task, rotated over samples and dimensions",
            ("n", "d"),
        ),
        Sent(
            "down/leverage/vectors",
            "the client's rows of the singular vectors, one column per rank",
            ("n", "d"),
            at_most=True,
        ),
        Sent(
            "up/leverage/mass",
            "sum of leverage scores",
            low=0,
            always=True,
            when=lambda settings: not _by_class(settings),
            remark="not in mode class_quota",
        ),
        Sent(
            "up/leverage/counts",
            "samples per new class",
            ("N",),
            kind="count",
            always=True,
            when=_by_class,
            remark="mode class_quota only",
        ),
        Sent(
            "up/leverage/masses",
            "leverage per new class",
            ("N",),
            low=0,
            always=True,
            when=_by_class,
            remark="mode class_quota only",
        ),
        Sent(
            "down/keep_by_leverage/quota",
            "how many to draw",
            remark="4 * N bytes in mode class_quota, one number per class",
        ),
    ),
)
def fedcbdr(settings: FedCBDRSettings) -> Method:
    """FedCBDR: exemplars by global leverage scores, temperature-scaled and re-weighted cross-entropy."""

    def tts(step: Step) -> Tensor:
        return temperature_scaled_cross_entropy(
            step.logits,
            step.labels,
            step.num_old,
            tau_old=settings.tau_old,
            tau_new=settings.tau_new,
            weight_old=settings.weight_old,
            weight_new=settings.weight_new,
            form=settings.tts,
        )

    return Method("fedcbdr", loss=LossTerm("tts", tts), replay=LeverageChoice(settings))
