"""A correction whose strength is chosen on samples that were not trained on, from tables of counts.

BiC (Wu et al., CVPR 2019) fits a scale and an offset for new classes on held-out exemplars in one place. Here two
numbers, the strength of EGC's gate and an offset on the new classes, are chosen by counting who is right at every
point of a grid; tables of several holders add up, so nothing but counts has to leave a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Choice(NamedTuple):
    """The chosen correction: share of EGC's gate, and how much is taken from every new class."""

    gamma: float
    delta: float


def calibrated(plain: Tensor, corrected: Tensor, *, num_old: int, gamma: float, delta: float) -> Tensor:
    """Return logits between plain and fully corrected, less an offset on the new classes.

    EGC is linear in its gate, so ``plain + gamma (corrected - plain)`` is EGC with the gate times ``gamma``:
    gamma = 1, delta = 0 is EGC; gamma = 0, delta = 0 is no correction; gamma = 0 is a plain offset.
    """
    logits = torch.lerp(plain, corrected, gamma)
    return torch.cat([logits[:, :num_old], logits[:, num_old:] - delta], dim=1)


def count_right(
    plain: Tensor, corrected: Tensor, labels: Tensor, *, num_old: int, gammas: Sequence[float], deltas: Sequence[float]
) -> Tensor:
    """Return how many old and how many new samples are right at every grid point: int32 [gammas, deltas, 2].

    The winner among old and among new classes does not depend on the offset, so each delta is one comparison.
    """
    old = labels < num_old
    table = torch.zeros(len(gammas), len(deltas), 2, dtype=torch.int32)
    offsets = torch.tensor(deltas, device=plain.device)
    for row, gamma in enumerate(gammas):
        logits = torch.lerp(plain, corrected, gamma)
        best_old, best_new = logits[:, :num_old].max(dim=1), logits[:, num_old:].max(dim=1)
        new_wins = best_new.values[:, None] - offsets > best_old.values[:, None]
        right = torch.where(
            new_wins,
            (best_new.indices + num_old == labels)[:, None],
            (best_old.indices == labels)[:, None],
        )
        table[row, :, 0] = right[old].sum(dim=0).int().cpu()
        table[row, :, 1] = right[~old].sum(dim=0).int().cpu()
    return table


def choose(
    right: Tensor,
    totals: tuple[int, int],
    *,
    num_old: int,
    num_new: int,
    gammas: Sequence[float],
    deltas: Sequence[float],
) -> Choice | None:
    """Return the grid point with the best class-weighted accuracy, the weakest correction among equals.

    ``(n_old acc_old + n_new acc_new) / C`` does not depend on how many samples of each side happen to be held out.
    None when either side has no sample to judge by.
    """
    if min(totals) == 0:
        return None
    share = right.double() / torch.tensor(totals, dtype=torch.float64)
    score = (num_old * share[..., 0] + num_new * share[..., 1]) / (num_old + num_new)
    best = (score >= score.max() - 1e-12).nonzero().tolist()
    widest = max(max(deltas), 1e-12)
    row, column = min(best, key=lambda point: (gammas[point[0]] + deltas[point[1]] / widest, gammas[point[0]]))
    return Choice(gammas[row], deltas[column])
