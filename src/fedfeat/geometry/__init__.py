"""FEAT's mathematics as pure functions, usable alone in anybody's training loop.

``ETFHead``, the classifier made of them, lives in ``fedfeat.models`` and can be had from here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedfeat.geometry.egc import Energies, egc_correct, egc_gate, group_energies
from fedfeat.geometry.etf import etf_cosine, orthonormal_basis, simplex_etf
from fedfeat.geometry.gsa import gsa_loss
from fedfeat.geometry.prior import ema, weighted_mean

if TYPE_CHECKING:
    from fedfeat.models.heads import ETFHead

__all__ = [
    "ETFHead",
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


def __getattr__(name: str) -> Any:
    """Import the head only when it is asked for: it rests on the functions above."""
    if name == "ETFHead":
        from fedfeat.models.heads import ETFHead

        return ETFHead
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
