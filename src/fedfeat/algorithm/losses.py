"""Classification losses as pure functions of logits and labels, and the quadratic pull to an anchor."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

TTSForm = Literal["code", "paper"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return softmax cross-entropy over all seen classes."""
    return F.cross_entropy(logits, labels)


def new_class_cross_entropy(logits: Tensor, labels: Tensor, num_old: int) -> Tensor:
    """Return cross-entropy over the new classes only, so that old and new logits never compete.

    With a single new class that would be constant; the full softmax is used then.
    """
    if num_old == 0 or logits.shape[1] - num_old < 2:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits[:, num_old:], labels - num_old)


def temperature_scaled_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    num_old: int,
    *,
    tau_old: float = 0.9,
    tau_new: float = 1.1,
    weight_old: float = 1.1,
    weight_new: float = 0.9,
    form: TTSForm = "code",
) -> Tensor:
    """Return FedCBDR's task-aware temperature-scaled loss (TTS).

    Old and new logits get their own temperature, old and new samples their own weight. ``code`` divides the whole
    row once more by the sample's own temperature and averages over the batch; ``paper`` adds one mean per group.
    """
    if num_old == 0:
        return F.cross_entropy(logits, labels)
    scaled = torch.cat([logits[:, :num_old] / tau_old, logits[:, num_old:] / tau_new], dim=1)
    old = labels < num_old
    weight = torch.where(old, weight_old, weight_new)
    if form == "code":
        scaled = scaled / torch.where(old, tau_old, tau_new)[:, None]
        return (weight * F.cross_entropy(scaled, labels, reduction="none")).mean()
    losses = weight * F.cross_entropy(scaled, labels, reduction="none")
    return _masked_mean(losses, old) + _masked_mean(losses, ~old)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over a group, zero for an empty one, without a branch."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def soft_cross_entropy(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return the mean over a batch of the cross-entropy between softened teacher and softened student.

    The customary factor T^2 is left out, as in the published code of LwF, TARGET and LANDER: the weights of their
    losses were tuned without it. Equal logits give the teacher's entropy, not zero.
    """
    targets = F.softmax(teacher_logits / temperature, dim=1)
    return -(targets * F.log_softmax(student_logits / temperature, dim=1)).sum(dim=1).mean()


def quadratic_pull(
    weights: Tensor, gradient: Tensor, anchor: Tensor, importance: Tensor | None = None, *, weight: float
) -> Tensor:
    """Add the gradient of ``weight / 2 * sum_i importance_i (w_i - anchor_i)^2`` and return the value itself."""
    moved = weights - anchor
    force = moved if importance is None else importance * moved
    gradient.add_(force, alpha=weight)
    return 0.5 * weight * torch.dot(force, moved)


def pull_to_global(personal: float) -> float:
    """Return ``q = (1 - lambda) / (2 lambda)`` of a personalised model: none at 1, without bound towards 0."""
    return (1 - personal) / (2 * personal)
