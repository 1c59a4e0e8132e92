"""A correction whose strength is chosen on samples that were not trained on, from tables that add up.

BiC (Wu et al., CVPR 2019) fits a scale and an offset for new classes on held-out exemplars in one place. Here two
numbers, the strength of EGC's gate and an offset on the new classes, are chosen by counting who is right at every
point of a grid, or by adding up the cross-entropy there; tables of several holders add up, so nothing else has to
leave a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Rule = Literal["accuracy", "likelihood"]


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


def sum_losses(
    plain: Tensor,
    corrected: Tensor,
    labels: Tensor,
    *,
    unit: Tensor,
    num_old: int,
    gammas: Sequence[float],
    deltas: Sequence[float],
) -> Tensor:
    """Return the cross-entropy of old and of new samples, added up at every grid point: [gammas, deltas, 2].

    :param unit: what each sample's logits are multiplied with before the softmax [n], such as the scale of cosines.
    """
    is_old = labels < num_old
    table = torch.zeros(len(gammas), len(deltas), 2)
    offsets = unit[:, None] * torch.tensor(deltas, device=plain.device, dtype=plain.dtype)
    for row, gamma in enumerate(gammas):
        logits = torch.lerp(plain, corrected, gamma) * unit[:, None]
        old, new = (part.logsumexp(dim=1, keepdim=True) for part in (logits[:, :num_old], logits[:, num_old:]))
        own = logits.gather(1, labels[:, None]) - offsets * ~is_old[:, None]
        losses = torch.logaddexp(old.expand_as(offsets), new - offsets) - own
        table[row, :, 0] = losses[is_old].sum(dim=0).cpu()
        table[row, :, 1] = losses[~is_old].sum(dim=0).cpu()
    return table


def choose(
    table: Tensor,
    totals: tuple[int, int],
    *,
    num_old: int,
    num_new: int,
    gammas: Sequence[float],
    deltas: Sequence[float],
    rule: Rule = "accuracy",
    least: int = 1,
) -> Choice | None:
    """Return the best grid point, the weakest correction among equals: none at all where the grid has it.

    ``(n_old acc_old + n_new acc_new) / C`` does not depend on how many samples of each side happen to be held out;
    by likelihood, mean losses take the place of accuracies, and the smallest wins.

    :param table: of ``count_right`` for the rule by accuracy, of ``sum_losses`` for the one by likelihood.
    :param least: with fewer samples of either side there is too little to judge by, and None is returned.
    """
    if min(totals) < max(least, 1):
        return None
    mean = table.double() / torch.tensor(totals, dtype=torch.float64)
    score = (num_old * mean[..., 0] + num_new * mean[..., 1]) / (num_old + num_new)
    if rule == "likelihood":
        score = -score
    best = (score >= score.max() - 1e-12).nonzero().tolist()
    widest = max(*map(abs, deltas), 1e-12)

    def strength(point: list[int]) -> tuple[float, float, bool]:
        gamma, delta = gammas[point[0]], deltas[point[1]]
        return gamma + abs(delta) / widest, gamma, delta < 0

    row, column = min(best, key=strength)
    return Choice(gammas[row], deltas[column])
