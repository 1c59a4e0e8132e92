r"""FedRCL (relaxed contrastive learning, CVPR 2024), on top of any base.

A supervised contrast at every level of the network makes clients agree, and a relaxation pushes apart samples of one
class that are already too similar, so that representations do not collapse where a client sees few classes.

Objective:
    $$
    L = L_{\mathrm{base}} + \frac{1}{K} \sum_{k=1}^{K}
    \left( \alpha\,\ell^{\mathrm{contrast}}_k + \beta\,\ell^{\mathrm{relax}}_k \right)
    $$

    over the $K$ stages of the network. $S_{ij}$ are cosines of pooled features within the batch, before the
    activation of a stage. Variant `hard`, mean over samples $i$:

    $$
    \ell^{\mathrm{contrast}} = - \log\,\frac{e^{p / \tau}}{e^{p / \tau} + \sum_q e^{q / \tau}}, \qquad
    \ell^{\mathrm{relax}} = \begin{cases} \log\left( 1 + e^{(s - 1) / \tau} \right) & s \ge \lambda \\
    0 & \text{otherwise} \end{cases}
    $$

    with $p$ the least similar sample of the class, itself included, $q$ the most similar ones of other classes, and
    $s$ the least similar other sample of the class. Variant `full`, mean over samples $i$ with partners $P_i$ of
    their class:

    $$
    \begin{aligned}
    \ell^{\mathrm{contrast}} &= \frac{1}{|P_i|} \sum_{j \in P_i} -
    \log\,\frac{e^{S_{ij} / \tau}}{\sum_{k \ne i} e^{S_{ik} / \tau}} \\
    \ell^{\mathrm{relax}} &= \log\left( 1 + \sum_{j \in P_i,\, S_{ij} > \lambda} e^{(S_{ij} - 1) / \tau} \right)
    \end{aligned}
    $$

Deviations:
    - Backbone, normalisation, learning rate and batch are those of the run; the released training uses GroupNorm, no
      momentum and a learning rate of 0.1.
    - The published relaxation of variant full is larger by the constant `1 / tau`.
    - The released code also knows an alignment with the global model and a proximal term, both at weight 0; `fedprox`
      can be added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.settings import Settings, setting

# Stand-ins for entries that a reduction must not see: outside of what a cosine can be, and finite.
ABOVE, BELOW = 2.0, -2.0
NOTHING = -1e9  # a logit without weight in a softmax


class FedRCLSettings(Settings):
    """Relaxed contrastive learning."""

    default_origin = "released code"

    variant: Literal["hard", "full"] = setting(
        "hard",
        "hardest pairs only, as the released configuration computes, or all pairs, as published",
        origin="released code, whose configuration computes this",
    )
    alpha: float = setting(1.0, "weight of the contrast", ge=0)
    beta: float = setting(1.0, "weight of the relaxation", ge=0)
    tau: float = setting(0.05, "temperature", gt=0)
    threshold: float = setting(
        0.7, "cosine from which samples of one class count as too similar", ge=-1, le=1, alias="lambda"
    )
    negatives: int = setting(2, "hardest samples of other classes (variant hard)", ge=1)
    grad_clip: Annotated[float, Field(gt=0)] | Literal["none"] = setting(
        10.0, "largest length of a step's gradient, or none"
    )


@addon("fedrcl", FedRCLSettings, examples=("fedcbdr+fedrcl",))
def fedrcl(method: Method, settings: FedRCLSettings) -> Method:
    """FedRCL: contrast classes at every stage of the network, relaxed where a class is already tight."""
    tau, threshold = settings.tau, settings.threshold
    if settings.variant == "hard":
        contrast = over_stages(lambda pairs: hard_contrast(pairs, tau, settings.negatives))
        relaxation = over_stages(lambda pairs: hard_relaxation(pairs, tau, threshold))
    else:
        contrast = over_stages(lambda pairs: full_contrast(pairs, tau))
        relaxation = over_stages(lambda pairs: full_relaxation(pairs, tau, threshold))
    clips = [c for c in (method.grad_clip, settings.grad_clip) if isinstance(c, int | float)]
    return replace(
        method,
        terms=(
            *method.terms,
            LossTerm("rcl", contrast, settings.alpha),
            LossTerm("rcl_relaxation", relaxation, settings.beta),
        ),
        wants_intermediate=True,
        grad_clip=min(clips, default=None),
    )


class Pairs:
    """Cosines between the samples of a batch at one stage, [B, B], and which pairs are of one class.

    Masks stand in for lists of positives and negatives, so shapes depend on the batch size alone.
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        with torch.autocast(features.device.type, enabled=False):  # a temperature of 0.05 needs float32
            unit = F.normalize(features.float(), dim=1, eps=1e-8)
            self.cosines = unit @ unit.T
        self.same = labels[:, None] == labels[None, :]
        self.self = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        self.partners = self.same & ~self.self


def hard_contrast(pairs: Pairs, tau: float, negatives: int = 2) -> Tensor:
    """Return the mean of ``-log e^(p/tau) / (e^(p/tau) + sum e^(n/tau))`` over the samples, a scalar.

    ``p`` is the least similar sample of the same class, the sample itself included; ``n`` are the most similar
    samples of other classes, fewer if there are fewer. Without any the loss of a sample is exactly 0.
    """
    hardest = pairs.cosines.masked_fill(pairs.self, 1.0).masked_fill(~pairs.same, ABOVE).amin(dim=1)
    count = min(negatives, len(hardest))
    rivals = pairs.cosines.masked_fill(pairs.same, BELOW).topk(count, dim=1).values
    there = torch.arange(count, device=rivals.device) < (~pairs.same).sum(dim=1, keepdim=True)
    excess = ((rivals - hardest[:, None]) / tau).masked_fill(~there, NOTHING)
    return torch.logsumexp(F.pad(excess, (1, 0)), dim=1).mean()


def hard_relaxation(pairs: Pairs, tau: float, threshold: float) -> Tensor:
    """Return the mean of ``log(1 + e^((s - 1)/tau))`` over the samples, 0 where ``s`` stays below the threshold.

    ``s`` is the least similar partner: even that one must be too similar before anything is pushed apart.
    """
    closest = pairs.cosines.masked_fill(~pairs.partners, ABOVE).amin(dim=1)
    active = pairs.partners.any(dim=1) & (closest >= threshold)
    return torch.where(active, F.softplus((closest - 1.0) / tau), 0.0).mean()


def full_contrast(pairs: Pairs, tau: float) -> Tensor:
    """Return the supervised contrastive loss: mean over partners, then over the samples that have one."""
    logits = (pairs.cosines / tau).masked_fill(pairs.self, NOTHING)
    log_share = logits - torch.logsumexp(logits, dim=1, keepdim=True)
    per_sample = torch.where(pairs.partners, -log_share, 0.0).sum(dim=1) / pairs.partners.sum(dim=1).clamp(min=1)
    return _mean_of_paired(per_sample, pairs)


def full_relaxation(pairs: Pairs, tau: float, threshold: float) -> Tensor:
    """Return the mean of ``log(1 + sum e^((S - 1)/tau))`` over partners above the threshold.

    That is the published term less its constant ``1/tau``.
    """
    close = pairs.partners & (pairs.cosines > threshold)
    excess = ((pairs.cosines - 1.0) / tau).masked_fill(~close, NOTHING)
    return _mean_of_paired(torch.logsumexp(F.pad(excess, (1, 0)), dim=1), pairs)


def _mean_of_paired(per_sample: Tensor, pairs: Pairs) -> Tensor:
    paired = pairs.partners.any(dim=1)
    return (per_sample * paired).sum() / paired.sum().clamp(min=1)


def over_stages(loss: Callable[[Pairs], Tensor]) -> Callable[[Step], Tensor]:
    """Return the mean of a loss over all stages of the network as a function of a step."""
    return lambda step: torch.stack([loss(Pairs(features, step.labels)) for features in step.intermediate]).mean()
