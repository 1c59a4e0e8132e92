r"""Bases that differ only in what they keep: everything, random exemplars, or exemplars near the class mean.

All three train on the task's images and on what was kept, shuffled together, with plain cross-entropy.

Objective:
    $$
    L = \mathrm{CE}(z, y)
    $$

    over all seen classes, on the task's images and the exemplars.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method, Op, TaskEndStep
from fedfeat.algorithm.registry import NoSettings, base
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.core.rng import rng_at


@base("joint")
def joint(settings: NoSettings) -> Method:
    """Every client keeps all it ever saw: the upper bound, outside any budget.

    Every client keeps all its images of every task. No budget holds, so this is an upper bound, not a competitor.

    Deviations:
        none: this is a bound and not a published method
    """
    return Method("joint", replay=Everything(), keeps_everything=True)


@base("replay", sends=(Sent("down/keep_random/quota", "how many images the client may keep"),))
def replay(settings: NoSettings) -> Method:
    """Each client replays exemplars chosen at random.

    At the end of a task each client keeps images chosen at random, up to its share of the budget.
    Whatever a better rule gains is measured from here.

    Deviations:
        none: this is a reference rule and not a published method
    """
    return Method("replay", replay=UniformChoice())


@base(
    "herding", sends=(final_model("keep_herded"), Sent("down/keep_herded/quota", "how many images the client may keep"))
)
def herding(settings: NoSettings) -> Method:
    """Each client replays the exemplars whose mean stays closest to its class means (iCaRL's rule).

    iCaRL's rule (Rebuffi et al., CVPR 2017) on each client: images are added one by one, so that the mean of their
    unit features stays as close as possible to the mean of the class.

    Deviations:
        - Means are those of the client's own images, not of all images of the class.
        - A client splits its quota evenly over the classes it holds. Nothing is dropped later: the budget is per task.
        - The classifier predicts; `ncm` adds iCaRL's prediction. iCaRL's sigmoid loss and distillation are left out.
    """
    return Method("herding", replay=Herding())


class Everything(TaskEndStep):
    """Keep all samples: joint training, without a budget."""

    unlimited = True

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_all``."""
        return {"keep_all": self.keep}

    def keep(self, client: Client, request: Payload) -> Payload:
        """Client: keep all there is."""
        client.keep(client.samples)
        return {}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: ask every present client."""
        task_end.exchange.gather("keep_all", {k: {} for k in sorted(task_end.quotas)})


class UniformChoice(TaskEndStep):
    """Keep samples chosen at random, up to the quota."""

    by_address = True

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_random``."""
        return {"keep_random": self.keep}

    def keep(self, client: Client, request: Payload) -> Payload:
        """Client: keep the first of a random order."""
        quota = min(int(number_of(request, "quota")), len(client.samples))
        rng = rng_at(client.seed, "keep-random", client.task, client.id)
        chosen = torch.from_numpy(rng.permutation(len(client.samples))[:quota]).to(client.device)
        client.keep(client.samples[chosen])
        return {}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: ask every client with a quota."""
        task_end.exchange.gather("keep_random", {k: {"quota": task_end.quotas[k]} for k in task_end.keepers})


class Herding(TaskEndStep):
    """Keep, class by class, the samples whose running mean stays closest to the class mean."""

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_herded``."""
        return {"keep_herded": self.keep}

    def keep(self, client: Client, request: Payload) -> Payload:
        """Client: split the quota over the classes, and herd within each."""
        client.model.load(tensor_of(request, "weights"))
        labels = client.labels(client.samples)
        members = [(labels == c).nonzero().flatten() for c in torch.unique(labels).tolist()]
        shares = even_shares([len(m) for m in members], int(number_of(request, "quota")))
        for positions, share in zip(members, shares, strict=True):
            if share:
                features = torch.cat(list(client.features(client.samples[positions])))
                client.keep(client.samples[positions[herd(features, share)]])
        return {}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: send the final model, whose features decide."""
        task_end.exchange.gather("keep_herded", task_end.model_and_quota())


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
