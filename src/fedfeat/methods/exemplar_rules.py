"""Replay rules that each client applies alone: keep everything, choose at random, herd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Op
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.core.rng import rng_at


class Everything:
    """Keep all samples: joint training, without a budget."""

    after_last = False

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_all``."""
        return {"keep_all": _keep_all}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Ask every present client."""
        task_end.exchange.gather("keep_all", {k: {} for k in sorted(task_end.quotas)})


class UniformChoice:
    """Keep samples chosen at random, up to the quota."""

    after_last = False

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_random``."""
        return {"keep_random": _keep_random}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Ask every client with a quota."""
        task_end.exchange.gather("keep_random", {k: {"quota": task_end.quotas[k]} for k in task_end.keepers})


class Herding:
    """Keep, class by class, the samples whose running mean stays closest to the class mean."""

    after_last = False

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_herded``."""
        return {"keep_herded": _keep_herded}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Send the final model: features are its own."""
        requests: dict[int, Payload] = {
            k: {"weights": task_end.weights, "quota": task_end.quotas[k]} for k in task_end.keepers
        }
        task_end.exchange.gather("keep_herded", requests)


def herd(features: Tensor, count: int) -> Tensor:
    """Return the positions of ``count`` rows, greedily chosen so that their mean follows the mean of all."""
    unit = F.normalize(features.double(), dim=1)
    mean = unit.mean(dim=0)
    total = torch.zeros_like(mean)
    free = torch.ones(len(unit), dtype=torch.bool, device=unit.device)
    chosen: list[int] = []
    for size in range(1, min(count, len(unit)) + 1):
        distance = ((total + unit) / size - mean).square().sum(dim=1)
        pick = int(distance.masked_fill(~free, float("inf")).argmin())
        chosen.append(pick)
        free[pick] = False
        total = total + unit[pick]
    return torch.tensor(chosen, dtype=torch.long, device=features.device)


def even_shares(counts: list[int], total: int) -> list[int]:
    """Split ``total`` over groups as evenly as their sizes allow, one by one, the earlier groups first."""
    shares = [0] * len(counts)
    left = min(total, sum(counts))
    while left > 0:
        for group, count in enumerate(counts):
            if left > 0 and shares[group] < count:
                shares[group] += 1
                left -= 1
    return shares


def _keep_all(client: Client, request: Payload) -> Payload:
    client.keep(client.samples)
    return {}


def _keep_random(client: Client, request: Payload) -> Payload:
    quota = min(int(number_of(request, "quota")), len(client.samples))
    rng = rng_at(client.seed, "keep-random", client.task, client.id)
    chosen = torch.from_numpy(rng.permutation(len(client.samples))[:quota]).to(client.device)
    client.keep(client.samples[chosen])
    return {}


def _keep_herded(client: Client, request: Payload) -> Payload:
    client.model.load(tensor_of(request, "weights"))
    labels = client.labels(client.samples)
    classes = torch.unique(labels).tolist()
    members = [(labels == c).nonzero().flatten() for c in classes]
    shares = even_shares([len(m) for m in members], int(number_of(request, "quota")))
    for positions, share in zip(members, shares, strict=True):
        if share:
            features = torch.cat(list(client.features(client.samples[positions])))
            client.keep(client.samples[positions[herd(features, share)]])
    return {}
