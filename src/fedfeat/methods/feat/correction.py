"""EGC at work: the prior that clients measure on their exemplars, and the corrected prediction."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Buffers, Prediction, Statistic
from fedfeat.algorithm.scaled import ScaledLogits
from fedfeat.algorithm.step import Known, Seen, Step
from fedfeat.core.payload import Payload, number_of
from fedfeat.core.rng import rng_at
from fedfeat.geometry import Energies, egc_correct, ema, group_energies, weighted_mean
from fedfeat.methods.feat.settings import EGCSettings
from fedfeat.models import ETFHead, Network, Outputs

PRIOR_HEAD, PRIOR_TAIL, NUM_TAIL = "prior_head", "prior_tail", "num_tail"


def _etf(network: Network) -> ETFHead:
    assert isinstance(network.head, ETFHead), "EGC was composed without the ETF head"
    return network.head


class EnergyPrior(Statistic):
    """Head and tail energies of exemplars of old classes: three numbers per client and round."""

    def __init__(self, settings: EGCSettings) -> None:
        self.settings = settings

    @property
    def per_step(self) -> bool:
        """Only the online variant looks at training batches."""
        return self.settings.prior_source == "online"

    def start(self, client: Client, request: Payload) -> Buffers:
        """Make the accumulators of the online variant: moving average, sum and count per group."""
        return {"average": torch.zeros(2, device=client.device), "sums": torch.zeros(3, device=client.device)}

    def update(self, network: Network, step: Step, buffers: Buffers) -> None:
        """Take in the old samples of a training batch (online variant only)."""
        if self.settings.prior_source != "online" or step.num_old == 0:
            return
        with torch.no_grad():
            old = (step.labels < step.num_old).float()
            energies = self._energies(network, step.features, step.num_old)
            sums = torch.stack([(energies.head * old).sum(), (energies.tail * old).sum(), old.sum()])
            means = sums[:2] / sums[2].clamp(min=1)
            rate = self.settings.rho if self.settings.ema_convention == "eq9" else 1 - self.settings.rho
            moved = (1 - rate) * buffers["average"] + rate * means
            if self.settings.ema_init == "first":
                moved = torch.where(buffers["sums"][2] == 0, means, moved)
            buffers["average"].copy_(torch.where(sums[2] > 0, moved, buffers["average"]))
            buffers["sums"].add_(sums)

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        """Return the client's priors and how many old samples they rest on; nothing in the first task."""
        if client.global_seen.num_old == 0:
            return {}
        if self.settings.prior_source == "online":
            head, tail, count = self._online(buffers)
        elif self.settings.prior_source == "loader":
            head, tail, count = self._loader_pass(client)
        else:
            head, tail, count = self._post_pass(client)
        return {PRIOR_HEAD: head, PRIOR_TAIL: tail, NUM_TAIL: count}

    def reduce(self, replies: Sequence[Payload]) -> dict[str, float]:
        """Average clients' priors by their number of old samples; without any, the earlier value stays."""
        holders = [r for r in replies if NUM_TAIL in r]
        counts = [number_of(r, NUM_TAIL) for r in holders]
        head = weighted_mean([number_of(r, PRIOR_HEAD) for r in holders], counts)
        tail = weighted_mean([number_of(r, PRIOR_TAIL) for r in holders], counts)
        if head is None or tail is None:
            if holders:
                warnings.warn(
                    "no client holds an exemplar of an old class: EGC keeps its last prior, or rests", stacklevel=2
                )
            return {}
        return {PRIOR_HEAD: head, PRIOR_TAIL: tail}

    def _online(self, buffers: Buffers) -> tuple[float, float, int]:
        sums = buffers["sums"].tolist()
        if self.settings.prior == "ema" or sums[2] == 0:
            head, tail = buffers["average"].tolist()
        else:
            head, tail = sums[0] / sums[2], sums[1] / sums[2]
        return head, tail, int(sums[2])

    def _post_pass(self, client: Client) -> tuple[float, float, int]:
        exemplars = client.trained_exemplars
        batches = list(client.features(exemplars, augment=self._augment))
        if not batches:
            return 0.0, 0.0, 0
        sizes = [len(batch) for batch in batches]
        energies = torch.stack(self._energies(client.network, torch.cat(batches), client.global_seen.num_old))
        if self.settings.prior == "ema" and self.settings.prior_order == "shuffled":
            energies = energies[:, _order(client, len(exemplars))]
        means = [part.mean(dim=1) for part in torch.split(energies, sizes, dim=1)]
        heads, tails = torch.stack(means, dim=1).tolist()  # one look at the device, not one per batch
        return self._average(heads, sizes), self._average(tails, sizes), len(exemplars)

    def _loader_pass(self, client: Client) -> tuple[float, float, int]:
        """Look at the local set as a loader brings it, in batches of old and new images; only the old ones count."""
        local_set, num_old = client.local_set, client.global_seen.num_old
        order = local_set[_order(client, len(local_set))]
        sums = []
        labels = torch.split(client.labels(order), client.settings.batch)
        for features, y in zip(client.features(order, augment=self._augment), labels, strict=True):
            old = (y < num_old).float()
            energies = self._energies(client.network, features, num_old)
            sums.append(torch.stack([(energies.head * old).sum(), (energies.tail * old).sum(), old.sum()]))
        batches = [(head, tail, int(count)) for head, tail, count in torch.stack(sums).tolist() if count]
        if not batches:
            return 0.0, 0.0, 0
        sizes = [count for _, _, count in batches]
        heads, tails = ([batch[side] / batch[2] for batch in batches] for side in (0, 1))
        return self._average(heads, sizes), self._average(tails, sizes), sum(sizes)

    @property
    def _augment(self) -> str | None:
        return "prior" if self.settings.prior_transform == "train" else None

    def _average(self, batch_means: list[float], sizes: list[int]) -> float:
        if self.settings.prior == "mean":
            return weighted_mean(batch_means, sizes) or 0.0
        s = self.settings
        return ema(batch_means, s.rho, convention=s.ema_convention, init=s.ema_init)

    def _energies(self, network: Network, features: Tensor, num_old: int) -> Energies:
        head = _etf(network)
        return group_energies(
            head.cosine(features.float()),
            num_old=num_old,
            rank_norm=self.settings.rank_norm,
            subspace=self.settings.subspace,
            num_prototypes=head.num_prototypes,
        )


def _order(client: Client, count: int) -> Tensor:
    """Return the order that a shuffled loader would have in this round."""
    rng = rng_at(client.seed, "prior-order", client.task, client.round, client.id)
    return torch.from_numpy(rng.permutation(count)).to(client.device)


class EnergyCorrection(Prediction):
    """EGC as a prediction: cosine logits, corrected by the gate that the global prior opens.

    Where the base's own loss was kept, they are divided by its temperatures at the end.
    """

    name, label, gives_cosines = "egc", "EGC", True

    def __init__(self, settings: EGCSettings, scaling: ScaledLogits | None = None) -> None:
        self.settings, self.scaling = settings, scaling

    def __call__(self, network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
        """Return corrected logits; cosine logits without a correction while there is no prior."""
        head = _etf(network)
        corrected = self._corrected(head, head.cosine(outputs.features.float()), seen, known)
        return corrected if self.scaling is None else self.scaling.divided(corrected, seen.num_old)

    def _corrected(self, head: ETFHead, cosines: Tensor, seen: Seen, known: Known) -> Tensor:
        if PRIOR_HEAD not in known.numbers or seen.task + 1 < self.settings.from_task:
            return cosines
        return egc_correct(
            cosines,
            num_old=seen.num_old,
            prior_head=known.numbers[PRIOR_HEAD],
            rank_norm=self.settings.rank_norm,
            subspace=self.settings.subspace,
            tail_boost=self.settings.tail_boost,
            eps=self.settings.eps,
            num_prototypes=head.num_prototypes,
        )
