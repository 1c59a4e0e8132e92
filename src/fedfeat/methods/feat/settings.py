"""Settings of FEAT and of its three parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedfeat.core.settings import Settings
from fedfeat.geometry.egc import RankNorm, Subspace
from fedfeat.geometry.etf import Basis
from fedfeat.geometry.gsa import Divergence
from fedfeat.geometry.prior import EmaConvention, EmaInit
from fedfeat.models.heads import FeatureLayer, Growth, LogitKind


class ETFSettings(Settings):
    """The fixed classifier."""

    growth: Growth = Field("nested", description="what happens to old prototypes when classes arrive")
    basis: Basis = Field("haar", description="orthonormal system under the frame: random, or the unit vectors")
    seed: int | None = Field(None, description="seed of the frame; default is the run's seed")
    max_classes: int | None = Field(None, ge=1, description="size of a preallocated frame; default is all classes")


class GSASettings(Settings):
    """The alignment loss."""

    weight: float = Field(0.1, ge=0, alias="lambda", description="weight of the loss; 0 switches it off")
    tau: float = Field(0.07, gt=0, description="temperature of both similarity distributions")
    kl: Divergence = Field("FP", description="direction: features from prototypes (as published), reverse, or both")
    include_self: bool = Field(True, description="keep each sample's similarity with itself")
    from_task: int = Field(2, ge=1, description="first task that uses it")
    class_balanced: bool = Field(True, description="average within classes before averaging over them")
    target: Literal["etf", "random"] = Field("etf", description="angles to align with; random is a control")


class EGCSettings(Settings):
    """The correction at inference, and the prior it rests on."""

    enabled: bool = Field(True, description="correct predictions")
    rho: float = Field(0.9, gt=0, le=1, description="rate of the prior's moving average")
    ema_convention: EmaConvention = Field("eq9", description="rho on the new value (eq9) or on the old one (decay)")
    ema_init: EmaInit = Field("first", description="start of the moving average")
    prior: Literal["ema", "mean"] = Field("ema", description="moving average over batches, or the exact mean")
    prior_source: Literal["post_pass", "online"] = Field(
        "post_pass",
        description="one pass over the exemplars after training, or the training batches themselves",
    )
    prior_transform: Literal["test", "train"] = Field("test", description="augmentation in the pass over exemplars")
    rank_norm: RankNorm = Field("minus_one", description="what an energy is divided by")
    subspace: Subspace = Field("span", description="subspace of a group of prototypes")
    tail_boost: bool = Field(True, description="also add the tail component, as published")
    eps: float = Field(1e-8, gt=0, description="guard in the gate's denominator")
    from_task: int = Field(2, ge=2, description="first task that is corrected")


class FeatSettings(Settings):
    """FEAT and its parts; every default follows the specification of the published method."""

    keep_tts: bool = Field(False, description="keep FedCBDR's own loss instead of plain cross-entropy")
    feature_head: FeatureLayer = Field("none", description="layer between backbone and frame")
    logits: LogitKind = Field("raw", description="train on inner products or on scaled cosines")
    logit_scale: float | Literal["learnable"] = Field(16.0, description="scale of cosine logits")
    etf: ETFSettings = Field(default_factory=ETFSettings, description="the classifier")
    gsa: GSASettings = Field(default_factory=lambda: GSASettings(), description="the loss")
    egc: EGCSettings = Field(default_factory=EGCSettings, description="the correction")
