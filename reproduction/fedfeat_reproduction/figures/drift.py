"""How far features of old classes lean towards the current ones: cosines with prototypes, and subspace energies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedfeat.geometry import Energies


class Lean(NamedTuple):
    """Cosines of each sample with its own prototype and with the nearest prototype of the current ("head") classes."""

    own: Tensor
    head: Tensor


def lean(cosines: Tensor, labels: Tensor, num_old: int) -> Lean:
    """Return both cosines from those with all prototypes [N, C], old classes first."""
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    return Lean(own, cosines[:, num_old:].max(dim=1).values)


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean of a value per sample over each class; nan for a class without a sample."""
    sums = torch.zeros(num_classes, dtype=torch.double).index_add(0, labels, values.double())
    return sums / torch.bincount(labels, minlength=num_classes)


def head_dominated(energies: Energies) -> float:
    """Return the share of samples with more energy in the span of head prototypes than in that of tail ones."""
    return float((energies.head > energies.tail).double().mean())
