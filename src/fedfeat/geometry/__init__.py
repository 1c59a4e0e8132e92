"""FEAT's mathematics as pure functions, usable alone in anybody's training loop."""

from fedfeat.geometry.egc import Energies, egc_correct, egc_gate, ema, group_energies, weighted_mean
from fedfeat.geometry.etf import etf_cosine, orthonormal_basis, simplex_etf
from fedfeat.geometry.gsa import gsa_loss

__all__ = [
    "Energies",
    "egc_correct",
    "egc_gate",
    "ema",
    "etf_cosine",
    "group_energies",
    "gsa_loss",
    "orthonormal_basis",
    "simplex_etf",
    "weighted_mean",
]
