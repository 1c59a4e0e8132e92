"""Where the energy of test features lies: its share in the span of new and of old prototypes, as small histograms."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.step import Known, Seen
from fedfeat.algorithm.tables import SAMPLES, SPANS, EnergyCounts
from fedfeat.geometry.egc import group_energies, group_rank
from fedfeat.models import ETFHead, Network

BINS = 100


class EnergyMeter:
    """Adds up the energies of batches of test features on the device; read once at the end."""

    def __init__(self, network: Network, method: Method, seen: Seen, known: Known) -> None:
        assert isinstance(network.head, ETFHead), "energies are those of an ETF's prototypes"
        self.head, self.seen, self.known = network.head, seen, known
        self.measure = method.energies
        device = network.head.prototypes.device
        self.counts = torch.zeros(len(SPANS), len(SAMPLES) * BINS, dtype=torch.long, device=device)

    @classmethod
    def of(cls, network: Network, method: Method, seen: Seen, known: Known) -> EnergyMeter | None:
        """Return a meter where there is something to measure: a fixed ETF, and old classes besides new ones."""
        return cls(network, method, seen, known) if method.has_etf_head and seen.num_old > 0 else None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        energies = group_energies(
            self.head.cosine(features.float()),
            num_old=self.seen.num_old,
            rank_norm="none",
            subspace=self.measure.subspace,
            num_prototypes=self.head.num_prototypes,
        )
        group = (labels >= self.seen.num_old).long()
        for row, shares in zip(self.counts, energies, strict=True):
            bins = (shares * BINS).long().clamp(0, BINS - 1)
            row += torch.bincount(group * BINS + bins, minlength=len(SAMPLES) * BINS)

    def read(self) -> EnergyCounts:
        """Return the histograms, with the priors turned from energies per rank into shares."""
        counts = self.counts.view(len(SPANS), len(SAMPLES), BINS).cpu().numpy()
        return EnergyCounts(counts, self._priors())

    def _priors(self) -> dict[str, float]:
        names, numbers = self.measure.priors, self.known.numbers
        if names is None or names[0] not in numbers:
            return {}
        sizes = self.seen.num_classes - self.seen.num_old, self.seen.num_old
        ranks = (group_rank(size, self.measure.rank_norm) for size in sizes)
        return {span: numbers[name] * rank for span, name, rank in zip(SPANS, names, ranks, strict=True)}
