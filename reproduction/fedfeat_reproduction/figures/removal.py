"""What EGC does to a feature, written out with projectors as published: for figures, where directions are looked at.

Predictions use ``fedfeat.geometry.egc_correct``, which never builds a projector; the tests hold one against the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Corrected(NamedTuple):
    """Features (unit length) before and after EGC, the component it removes, and the whole change."""

    before: Tensor
    after: Tensor
    removed: Tensor  # g P_H x
    change: Tensor  # g P_T x - g P_H x; without the tail's share, -g P_H x


def projector(prototypes: Tensor) -> Tensor:
    """Return the orthogonal projector [d, d] on the span of prototypes [d, n]."""
    w = prototypes.double()
    onto: Tensor = w @ torch.linalg.pinv(w)
    return onto


def correct_features(
    features: Tensor, prototypes: Tensor, num_old: int, gate: Tensor, *, tail_boost: bool = True
) -> Corrected:
    """Return ``x' = x - g P_H x + g P_T x`` for features [N, d], prototypes [d, C] (old ones first), gates [N].

    :param tail_boost: ``False`` removes the head component and adds nothing, as in ``fedfeat.geometry.egc_correct``.
    """
    unit = F.normalize(features.double(), dim=1, eps=1e-12)
    tail, head = projector(prototypes[:, :num_old]), projector(prototypes[:, num_old:])
    g = gate.double()[:, None]
    removed = g * (unit @ head)
    change = g * (unit @ tail) - removed if tail_boost else -removed
    return Corrected(unit, F.normalize(unit + change, dim=1, eps=1e-12), removed, change)


def subspace_alignment(vectors: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosine between each vector and the span of prototypes, ``|P v| / |v|``; nan for no vector at all."""
    v = vectors.double()
    cosines: Tensor = (v @ projector(prototypes)).norm(dim=1) / v.norm(dim=1)
    return cosines
