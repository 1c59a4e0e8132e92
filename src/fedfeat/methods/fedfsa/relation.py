"""Relations inside a batch of vectors: distances of pairs and angles of triples, and how far two batches differ."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-12


class Relations(NamedTuple):
    """How vectors lie to each other."""

    distances: Tensor  # [N, N]
    cosines: Tensor  # [j, i, k]: of the angle at j between i and k

    def at(self, labels: Tensor) -> Relations:
        """Return the relations of rows that may repeat."""
        cosines = self.cosines
        for axis in range(3):
            cosines = cosines.index_select(axis, labels)
        return Relations(self.distances[labels][:, labels], cosines)


def relations(vectors: Tensor) -> Relations:
    """Return distances and angles of vectors [N, d].

    Distances come from differences, so that equal rows are exactly 0 apart; cosines come from distances by the law
    of cosines, which spares a product of all triples. A side of length 0 has no direction: its cosines are 0.
    """
    distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    squares = distances.square()
    inverse = torch.where(distances > 0, 1 / distances.clamp(min=TINY), torch.zeros_like(distances))
    sums = squares[:, :, None] + squares[:, None, :] - squares[None, :, :]
    return Relations(distances, 0.5 * sums * inverse[:, :, None] * inverse[:, None, :])


def relation_loss(student: Relations, teacher: Relations) -> Tensor:
    """Return the mean squared difference of distances plus that of cosines.

    Distances are divided by the mean of the positive ones. A teacher whose rows are all equal has nothing to say:
    the loss is then 0.
    """
    distance = (_relative(student.distances) - _relative(teacher.distances)).square().mean()
    angle = (student.cosines - teacher.cosines).square().mean()
    return (distance + angle) * (teacher.distances > 0).any()


def _relative(distances: Tensor) -> Tensor:
    mean = distances.sum() / (distances > 0).sum().clamp(min=1)
    return distances / mean.clamp(min=TINY)
