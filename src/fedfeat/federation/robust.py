"""Robust aggregation: what some clients send may be meant to do harm, and should not decide what the server joins.

Coordinate-wise median and trimmed mean (Yin et al., ICML 2018), Krum and Multi-Krum (Blanchard et al., NeurIPS 2017),
norm bounding (Sun et al., 2019). A rule changes replies before anybody joins them, so that means over clients become
what the rule says: for the weights, and for every other number that clients of one shape send, class by class.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedfeat.algorithm.sent import Sent
from fedfeat.algorithm.settings import TrainSettings
from fedfeat.core.payload import Payload, as_tensor, tensor_of

WEIGHTS = "weights"
SELECTING = ("krum", "multi_krum")  # rules that keep whole replies; entries without weights get the median


def joined(
    op: str,
    requests: Mapping[int, Payload],
    replies: Mapping[int, Payload],
    sends: Mapping[str, Sent],
    settings: TrainSettings,
) -> dict[int, Payload]:
    """Return replies of which every mean is what the rule of the settings says."""
    if settings.robust == "none":
        return dict(replies)
    changed = {k: dict(reply) for k, reply in replies.items()}
    trained = [k for k, reply in changed.items() if WEIGHTS in reply]
    if op == "train" and trained:
        sent = torch.stack([tensor_of(requests[k], WEIGHTS) for k in trained])
        updates = torch.stack([tensor_of(changed[k], WEIGHTS) for k in trained]).to(sent) - sent
        bad = int(settings.attackers * len(trained))
        if settings.robust in SELECTING:
            chosen = {trained[i] for i in selected(updates, settings.robust, bad)}
            return {k: reply for k, reply in changed.items() if k in chosen or k not in trained}
        for k, vector in zip(trained, sent + blended(updates, settings, bad, settings.norm_bound), strict=True):
            changed[k][WEIGHTS] = vector
    answers = {name: declared for name, declared in sends.items() if declared.op == op and declared.shape is not None}
    ids = next((name for name, declared in answers.items() if declared.kind == "class"), None)
    for name, declared in answers.items():
        if declared.kind == "number":
            _join_entry(name, declared, ids, changed, settings)
    return changed


def _join_entry(
    name: str, declared: Sent, ids: str | None, replies: dict[int, Payload], settings: TrainSettings
) -> None:
    """Put what the rule makes of one entry in its place; rows of samples belong to one client and stay."""
    bad = int(settings.attackers * len(replies))
    held = {k: as_tensor(reply[name]).clone() for k, reply in replies.items() if name in reply}
    first = declared.shape[0] if declared.shape else None
    if first == "n" or not held:
        return
    if first in ("C", "h"):
        rows: dict[int, list[tuple[int, int]]] = {}  # by class: which row of which client
        for k, value in held.items():
            classes = tensor_of(replies[k], ids).tolist() if first == "h" and ids is not None else range(len(value))
            for row, label in enumerate(classes):
                if bool(value[row].any()):  # of a class that a client does not hold there is nothing to join
                    rows.setdefault(int(label), []).append((k, row))
        for places in rows.values():
            made = blended(torch.stack([held[k][row] for k, row in places]), settings, bad)
            for (k, row), value in zip(places, made, strict=True):
                held[k][row] = value
    else:
        held = dict(zip(held, blended(torch.stack(list(held.values())), settings, bad), strict=True))
    for k, value in held.items():
        replies[k][name] = value if isinstance(replies[k][name], Tensor) else float(value)


def blended(values: Tensor, settings: TrainSettings, bad: int, bound: float | None = None) -> Tensor:
    """Return ``[clients, ...]`` changed by the rule: all alike, or each cut to the norm that most keep to.

    :param bad: how many of them may attack; of a class that few clients hold, as many as leaves one.
    """
    most = (len(values) - 1) // 2  # so many off both ends leave the median
    if settings.robust == "norm_bounding":
        norms = torch.linalg.vector_norm(values.flatten(1) if values.dim() > 1 else values[:, None], dim=1)
        limit = trimmed_mean(norms, most) if bound is None else torch.tensor(bound).to(norms)
        factor = (limit / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
        cut: Tensor = values * factor.view(-1, *[1] * (values.dim() - 1))
        return cut
    made = trimmed_mean(values, min(bad, most) if settings.robust == "trimmed_mean" else most)
    return made.expand_as(values).clone()


def trimmed_mean(values: Tensor, trim: int) -> Tensor:
    """Return the mean over clients without the ``trim`` smallest and largest values of each coordinate."""
    kept: Tensor = values.sort(dim=0).values[trim : len(values) - trim]
    return kept.mean(dim=0)


def selected(updates: Tensor, rule: str, bad: int) -> list[int]:
    """Return the rows that Krum keeps: one, or with Multi-Krum all but ``bad``, those nearest to their neighbours."""
    count = len(updates)
    near = max(count - bad - 2, 1)
    distances = torch.cdist(updates.double(), updates.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    scores = distances.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)
    kept = 1 if rule == "krum" else max(count - bad, 1)
    return sorted(scores.sort(stable=True).indices[:kept].tolist())
