"""GSA, the geometric structure alignment loss: features of a batch should lie to each other as their prototypes do."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.geometry.etf import etf_cosine

Divergence = Literal["FP", "PF", "sym"]


def gsa_loss(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    temperature: float = 0.07,
    kl: Divergence = "FP",
    include_self: bool = True,
    class_balanced: bool = True,
    prototype_cosines: Tensor | None = None,
) -> Tensor:
    """Return the mean divergence between feature similarities and ETF similarities of a batch, a scalar.

    Both similarity matrices become distributions by a row softmax at ``temperature``. The loss vanishes exactly
    where the features are the prototypes up to one rotation and positive lengths; no gradient reaches a prototype.

    :param features: [B, d], of any length: only directions count.
    :param labels: [B], in ``0..num_classes-1``.
    :param num_classes: classes seen so far, also when the batch holds fewer; fixes the target ``-1 / (C - 1)``.
    :param kl: ``FP`` is KL(features || prototypes) as published, ``PF`` the reverse, ``sym`` their mean.
    :param include_self: keep the diagonal, which pins the target of a sample that is alone in its class.
    :param class_balanced: average rows within a class first, so a class of one weighs as much as one of a hundred.
    :param prototype_cosines: [C, C] cosines of other prototypes than a simplex ETF.
    """
    same = labels[:, None] == labels[None, :]
    unit = F.normalize(features.float(), dim=1, eps=1e-8)
    student = _row_log_softmax(unit @ unit.T / temperature, include_self)
    if prototype_cosines is None:
        target = torch.where(same, 1.0, etf_cosine(num_classes))
    else:
        target = prototype_cosines.detach().float()[labels][:, labels]
    teacher = _row_log_softmax(target / temperature, include_self)
    rows = _row_divergence(student, teacher, kl)
    if not class_balanced:
        return rows.mean()
    weight = 1.0 / same.sum(dim=1)
    return (rows * weight).sum() / weight.sum()


def _row_log_softmax(similarity: Tensor, include_self: bool) -> Tensor:
    if include_self:
        return F.log_softmax(similarity, dim=1)
    # A large finite value instead of -inf keeps 0 * log 0 at 0, and a batch of one at a loss of 0.
    diagonal = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    return F.log_softmax(similarity.masked_fill(diagonal, -1e4), dim=1)


def _row_divergence(student: Tensor, teacher: Tensor, kl: Divergence) -> Tensor:
    forward = (student.exp() * (student - teacher)).sum(dim=1)
    if kl == "FP":
        return forward
    backward = (teacher.exp() * (teacher - student)).sum(dim=1)
    return backward if kl == "PF" else 0.5 * (forward + backward)
