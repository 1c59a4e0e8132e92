"""Which single images show what a correction does: chosen by rule, the middle of their kind."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Margins(NamedTuple):
    """Cosine with the own prototype less the largest with another, before and after."""

    before: Tensor
    after: Tensor


def margins(before: Tensor, after: Tensor, labels: Tensor) -> Margins:
    """Return both margins from cosines [N, C]; a positive one is a right prediction."""

    def margin(cosines: Tensor) -> Tensor:
        own = cosines.gather(1, labels[:, None])
        return (own - cosines.scatter(1, labels[:, None], -torch.inf).max(dim=1, keepdim=True).values).squeeze(1)

    return Margins(margin(before), margin(after))


def choose_cases(found: Margins, candidates: Tensor) -> dict[str, int]:
    """Return an image for each panel that has one: the middle of its kind by what it gained, not the best.

    (a, b) wrong before and right after, at one and at two thirds; (c) right before, with a larger margin after;
    (d) wrong before and after, with a smaller gap if there is any such image.
    """
    before, after = found.before[candidates], found.after[candidates]
    gain = after - before
    wrong = (before <= 0) & (after <= 0)
    kinds = {
        "a": (before <= 0) & (after > 0),
        "b": (before <= 0) & (after > 0),
        "c": (before > 0) & (gain > 0),
        "d": wrong & (gain > 0) if (wrong & (gain > 0)).any() else wrong,
    }
    chosen = {}
    for panel, place in {"a": 1 / 3, "b": 2 / 3, "c": 1 / 2, "d": 1 / 2}.items():
        members = kinds[panel].nonzero().flatten()
        members = members[gain[members].argsort(stable=True)]
        if len(members) > (panel == "b"):  # one corrected image is enough for (a), not for both
            chosen[panel] = int(candidates[members[int(place * len(members))]])
    return chosen
