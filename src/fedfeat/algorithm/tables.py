"""What an evaluation counts: confusion tables, and histograms of the energies of test features."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

OWN, OWN_LABEL = "own", "method's own"  # what a prediction is called that does not say
SPANS, SAMPLES = ("head", "tail"), ("tail", "head")  # samples in the order of classes: old ones first


class EnergyCounts(NamedTuple):
    """Histograms of shares in [0, 1], and EGC's priors on the same scale."""

    counts: np.ndarray  # [span, samples, bin], in the order of SPANS and SAMPLES
    prior: Mapping[str, float]  # by span; empty while there is none

    def record(self) -> dict[str, Any]:
        """Return plain data for an event: ``{span: {"of_tail": counts, "of_head": counts, "prior": share}}``."""
        return {
            span: {f"of_{group}": self.counts[s, g].tolist() for g, group in enumerate(SAMPLES)}
            | ({"prior": self.prior[span]} if span in self.prior else {})
            for s, span in enumerate(SPANS)
        }


class Tables(NamedTuple):
    """Confusion tables [true class, predicted class] without and with the method's correction."""

    plain: np.ndarray
    corrected: np.ndarray
    variants: Mapping[str, np.ndarray] = MappingProxyType({})  # other predictions, by name
    energies: EnergyCounts | None = None  # of the test features; none without an ETF, or without old classes
