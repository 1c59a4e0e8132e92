"""Classifiers that grow with the classes: a linear layer, and the fixed simplex ETF."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.core.errors import ConfigError
from fedfeat.core.rng import int_at
from fedfeat.geometry.etf import Basis, simplex_etf

Growth = Literal["nested", "redraw", "preallocated"]
LogitKind = Literal["raw", "cosine"]
FeatureLayer = Literal["none", "linear", "mlp"]


class LinearHead(nn.Module):
    """A linear layer with bias; growing keeps the rows of old classes and draws the new ones from their address."""

    has_bias = True
    growing = ("weight", "bias")  # entries with a row per class

    def __init__(self, dim: int, *, seed: int) -> None:
        super().__init__()
        self.dim = dim
        self.seed = seed
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def num_classes(self) -> int:
        """Classes seen so far."""
        return len(self.weight)

    @property
    def num_prototypes(self) -> int:
        """Rows of the classifier: one per seen class."""
        return len(self.weight)

    def grow(self, num_classes: int, task: int) -> None:
        """Add rows up to ``num_classes``."""
        new = num_classes - self.num_classes
        generator = torch.Generator().manual_seed(int_at(self.seed, "head-rows", task))
        bound = math.sqrt(3.0 / self.dim)  # Kaiming uniform for a linear layer
        rows = torch.empty(new, self.dim).uniform_(-bound, bound, generator=generator).to(self.weight.device)
        self.weight = nn.Parameter(torch.cat([self.weight.data, rows]))
        self.bias = nn.Parameter(torch.cat([self.bias.data, torch.zeros_like(rows[:, 0])]))

    def feature(self, pooled: Tensor) -> Tensor:
        """Return the feature that the classifier sees: the pooled output itself."""
        return pooled

    def multiplied(self, features: Tensor) -> Tensor:
        """Return what the rows of the classifier are multiplied with."""
        return features

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [B, C]."""
        return F.linear(features, self.weight, self.bias)


class ETFHead(nn.Module):
    """A classifier nobody trains: the columns of a simplex ETF, the same for every client.

    ``head = ETFHead(512, seed=0); head.grow(10)`` and ``head(features)`` gives logits. ``cosine`` gives the cosines
    that EGC works on.

    :param growth: ``nested`` moves old prototypes as little as possible when classes arrive, ``redraw`` draws a new
        ETF per task, ``preallocated`` uses the first columns of one ETF of ``max_classes``.
    :param logits: ``raw`` uses the feature's length, ``cosine`` its direction times ``scale``.
    :param scale: a number, or ``"learnable"`` for a trained scalar that starts at 16.
    :param feature_layer: a layer between backbone and ETF, so that features may be negative.
    """

    has_bias = False
    growing: tuple[str, ...] = ()

    def __init__(
        self,
        dim: int,
        *,
        seed: int,
        growth: Growth = "nested",
        basis: Basis = "haar",
        logits: LogitKind = "raw",
        scale: float | Literal["learnable"] = 16.0,
        feature_layer: FeatureLayer = "none",
        max_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.seed = seed
        self.growth = growth
        self.basis: Basis = basis
        self.logit_kind = logits
        self.max_classes = max_classes or dim
        self.layer = _feature_layer(feature_layer, dim)
        self.scale: nn.Parameter | float
        if logits == "cosine" and scale == "learnable":
            self.scale = nn.Parameter(torch.tensor(16.0))
        else:
            self.scale = 16.0 if scale == "learnable" else float(scale)
        # Rebuilt from the seed wherever it is needed: never sent, never averaged, never saved.
        self.register_buffer("prototypes", torch.empty(dim, 0), persistent=False)

    prototypes: Tensor

    @property
    def num_classes(self) -> int:
        """Classes seen so far."""
        return self.prototypes.shape[1]

    @property
    def num_prototypes(self) -> int:
        """Size of the whole ETF: more than the seen classes only when it is preallocated."""
        return self.max_classes if self.growth == "preallocated" else self.num_classes

    def grow(self, num_classes: int, task: int = 0) -> None:
        """Set the ETF for ``num_classes`` seen classes; without a new one it stays."""
        if num_classes == self.num_classes:
            return
        seed = int_at(self.seed, "etf-redraw", task) if self.growth == "redraw" else self.seed
        size = self.max_classes if self.growth == "preallocated" else num_classes
        if num_classes > size:
            raise ConfigError(
                f"feat.etf.max_classes: an ETF preallocated for {size} classes cannot hold {num_classes}; raise it"
            )
        etf = simplex_etf(size, self.dim, seed=seed, basis=self.basis)
        self.prototypes = etf[:, :num_classes].contiguous().to(self.prototypes.device)

    def feature(self, pooled: Tensor) -> Tensor:
        """Return the feature that CE, GSA and EGC all use."""
        out: Tensor = self.layer(pooled)
        return out

    def multiplied(self, features: Tensor) -> Tensor:
        """Return what the prototypes are multiplied with: the feature, or its scaled direction."""
        return self.scale * F.normalize(features, dim=1, eps=1e-8) if self.logit_kind == "cosine" else features

    def cosine(self, features: Tensor) -> Tensor:
        """Return cosines of features with prototypes, [B, C]."""
        return F.normalize(features, dim=1, eps=1e-8) @ self.prototypes

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits to train on, [B, C]."""
        return self.multiplied(features) @ self.prototypes


Head = LinearHead | ETFHead


def _feature_layer(kind: FeatureLayer, dim: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(dim, dim, bias=False)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim, bias=False))
    return nn.Identity()
