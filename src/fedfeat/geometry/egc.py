"""EGC, the energy-based geometric correction: takes from a prediction the pull that current ("head") classes exert.

Everything here works on cosine logits ``z = W^T x`` with old ("tail") classes first. A group of prototypes of a
simplex ETF has the Gram matrix ``(1 - c) I + c 11^T``, whose inverse is known, so the projectors of the published
form never have to be built. Classes that are the first of a larger ETF (``num_prototypes``) follow the same formulas
with another ``c``. The prior is what head energy looks like on exemplars of old classes, averaged over batches and
clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedfeat.geometry.etf import etf_cosine

RankNorm = Literal["minus_one", "true_rank", "none"]
Subspace = Literal["span", "centered"]
EmaConvention = Literal["eq9", "decay"]
EmaInit = Literal["first", "zero"]


class Energies(NamedTuple):
    """Share of each sample's energy in the span of the head and of the tail prototypes, over the group's rank."""

    head: Tensor
    tail: Tensor


def group_energies(
    cosine_logits: Tensor,
    *,
    num_old: int,
    rank_norm: RankNorm = "minus_one",
    subspace: Subspace = "span",
    num_prototypes: int | None = None,
) -> Energies:
    """Return rank-normalised energies ``||P_G x||^2 / r_G`` of both groups, from cosine logits [B, C]."""
    c = etf_cosine(num_prototypes or cosine_logits.shape[1])
    tail, head = cosine_logits[:, :num_old], cosine_logits[:, num_old:]
    return Energies(
        head=_energy(head, c, subspace) / group_rank(head.shape[1], rank_norm),
        tail=_energy(tail, c, subspace) / group_rank(tail.shape[1], rank_norm),
    )


def egc_gate(energies: Energies, prior_head: float | Tensor, *, eps: float = 1e-8) -> Tensor:
    """Return how strongly each sample is corrected, in [0, 1): its head energy above what old exemplars show."""
    excess = energies.head - prior_head
    # Rounding must not close the gap to one: a gate of one would tie all head classes.
    return (excess / (energies.head + energies.tail + eps)).clamp(min=0.0, max=1.0 - 1e-6)


def egc_correct(
    cosine_logits: Tensor,
    *,
    num_old: int,
    prior_head: float | Tensor,
    rank_norm: RankNorm = "minus_one",
    subspace: Subspace = "span",
    tail_boost: bool = True,
    eps: float = 1e-8,
    num_prototypes: int | None = None,
) -> Tensor:
    """Return the logits that EGC's corrected features would give, up to a common positive factor.

    The correction is ``x' = x - g P_H x + g P_T x``. The ranking inside the old and inside the new classes never
    changes; only the winner between the two groups may. Without old or without new classes nothing is corrected.

    :param cosine_logits: [B, C], cosines of features with prototypes, old classes first.
    :param num_old: how many of the C classes are old.
    :param prior_head: mean head energy of exemplars of old classes, with the same ``rank_norm`` and ``subspace``.
    :param tail_boost: ``False`` removes the head component without adding the tail component a second time.
    :param num_prototypes: size of the whole ETF when the C classes are only its first part.
    """
    if not 0 < num_old < cosine_logits.shape[1]:
        return cosine_logits
    z = cosine_logits.float()
    energies = group_energies(z, num_old=num_old, rank_norm=rank_norm, subspace=subspace, num_prototypes=num_prototypes)
    gate = egc_gate(energies, prior_head, eps=eps)[:, None]
    c = etf_cosine(num_prototypes or z.shape[1])
    tail, head = z[:, :num_old], z[:, num_old:]
    head_inside, head_outside = _component(head, c, subspace)
    move_tail, move_head = -head_outside, -head_inside
    if tail_boost:
        tail_inside, tail_outside = _component(tail, c, subspace)
        move_tail, move_head = move_tail + tail_inside, move_head + tail_outside
    return torch.cat([torch.addcmul(tail, gate, move_tail), torch.addcmul(head, gate, move_head)], dim=1)


def _rest(size: int, c: float) -> float:
    """Return the eigenvalue of a group's Gram matrix ``(1 - c) I + c 11^T`` along ``1``.

    It is zero for a whole ETF, whose logits sum to zero; any number serves there, and ``1 - c`` is the other one.
    """
    rest = 1 + (size - 1) * c
    return rest if abs(rest) >= 1e-12 else 1 - c


def _component(group: Tensor, c: float, subspace: Subspace) -> tuple[Tensor, Tensor]:
    """Return ``w^T P_G x`` for the prototypes of the group, [B, n], and for every other one, [B, 1].

    In the span these are ``z`` itself and ``c 1^T G^-1 z``. Differences of prototypes are orthogonal to their mean and
    to all other prototypes.
    """
    if subspace == "centered":
        return group - group.mean(dim=1, keepdim=True), torch.zeros_like(group[:, :1])
    return group, group.sum(dim=1, keepdim=True) * (c / _rest(group.shape[1], c))


def _energy(group: Tensor, c: float, subspace: Subspace) -> Tensor:
    """Return ``z^T G^-1 z``; the inverse of the Gram matrix is known (Sherman-Morrison)."""
    if subspace == "centered":
        centred = group - group.mean(dim=1, keepdim=True)
        return centred.square().sum(dim=1) / (1 - c)
    total = group.sum(dim=1)
    return torch.addcmul(group.square().sum(dim=1), total, total, value=-c / _rest(group.shape[1], c)) / (1 - c)


def group_rank(size: int, rank_norm: RankNorm) -> int:
    """Return what the energy of a group of ``size`` prototypes is divided by."""
    # A printed denominator of size - 1 would divide by zero for one class.
    return {"minus_one": max(size - 1, 1), "true_rank": size, "none": 1}[rank_norm]


def ema(values: Iterable[float], rho: float, *, convention: EmaConvention = "eq9", init: EmaInit = "first") -> float:
    """Return the moving average of batch means.

    ``eq9`` puts ``rho`` on the new value, as the published equation does; ``decay`` puts it on the old one.
    """
    new = rho if convention == "eq9" else 1.0 - rho
    average: float | None = 0.0 if init == "zero" else None
    for value in values:
        average = value if average is None else (1.0 - new) * average + new * value
    return 0.0 if average is None else average


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return the mean of clients' priors by their number of old samples, or None when nobody has any."""
    total = sum(weights)
    if total <= 0:
        return None
    return sum(v * w for v, w in zip(values, weights, strict=True) if w > 0) / total
