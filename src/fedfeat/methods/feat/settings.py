"""Settings of FEAT and of its three parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedfeat.core.settings import Settings, setting
from fedfeat.geometry.egc import EmaConvention, EmaInit, RankNorm, Subspace
from fedfeat.geometry.etf import Basis
from fedfeat.geometry.gsa import Divergence
from fedfeat.models.heads import FeatureLayer, Growth, LogitKind


class ETFSettings(Settings):
    """The fixed classifier."""

    growth: Growth = setting(
        "nested",
        "what happens to old prototypes when classes arrive",
        origin="a choice: the paper allows a new ETF per task, which turns old prototypes by about 90 degrees",
    )
    basis: Basis = setting(
        "haar",
        "orthonormal system under the ETF: random, or the unit vectors",
        origin="a choice: random and without a preferred direction",
    )
    seed: int | None = setting(None, "seed of the ETF; default is the run's seed", origin="a choice: the run's own")
    max_classes: int | None = setting(
        None, "size of a preallocated ETF; default is all classes", origin="as many as there are classes", ge=1
    )


class GSASettings(Settings):
    """The alignment loss."""

    weight: float = setting(0.1, "weight of the loss; 0 switches it off", origin="paper", ge=0, alias="lambda")
    tau: float = setting(0.07, "temperature of both similarity distributions", origin="paper and released code", gt=0)
    kl: Divergence = setting(
        "FP", "direction: features from prototypes (as published), reverse, or both", origin="paper and released code"
    )
    include_self: bool = setting(
        True, "keep each sample's similarity with itself", origin="released code; the paper does not say"
    )
    from_task: int = setting(
        2, "first task that uses it", origin="paper; the released code starts in the first task", ge=1
    )
    class_balanced: bool = setting(True, "average within classes before averaging over them", origin="paper")
    target: Literal["etf", "random"] = setting("etf", "angles to align with; random is a control", origin="paper")


class EGCSettings(Settings):
    """The correction at inference, and the prior it rests on."""

    enabled: bool = setting(True, "correct predictions", origin="paper")
    rho: float = setting(
        0.9, "rate of the prior's moving average", origin="paper; 0.8 in the released code", gt=0, le=1
    )
    ema_convention: EmaConvention = setting(
        "eq9",
        "rho on the new value (eq9) or on the old one (decay)",
        origin="paper's equation and released code; the paper's text reads like `decay`",
    )
    ema_init: EmaInit = setting(
        "first", "start of the moving average", origin="a choice: no pull to zero; the released code starts at 0"
    )
    prior: Literal["ema", "mean"] = setting("ema", "moving average over batches, or the exact mean", origin="paper")
    prior_order: Literal["shuffled", "kept"] = setting(
        "shuffled",
        "order of the exemplars behind the moving average; as they were kept, the last few classes outweigh all others",
        origin="released code: a shuffled loader",
    )
    prior_source: Literal["post_pass", "loader", "online"] = setting(
        "post_pass",
        "after training, one pass over the exemplars, or over shuffled batches of the whole local set of which the old "
        "classes count; or the training batches themselves",
        origin="released code: one pass after local training, over the training loader",
    )
    prior_transform: Literal["test", "train"] = setting(
        "test",
        "augmentation in the pass over exemplars",
        origin="a choice: images as they are; the released code augments them",
    )
    rank_norm: RankNorm = setting("minus_one", "what an energy is divided by", origin="paper")
    subspace: Subspace = setting("span", "subspace of a group of prototypes", origin="paper")
    tail_boost: bool = setting(True, "also add the tail component, as published", origin="paper's equation")
    eps: float = setting(1e-8, "guard in the gate's denominator", origin="assumed", gt=0)
    from_task: int = setting(2, "first task that is corrected", origin="paper", ge=2)


class FeatSettings(Settings):
    """FEAT and its parts; every default follows the specification of the published method."""

    keep_tts: bool = setting(False, "keep FedCBDR's own loss instead of plain cross-entropy", origin="paper")
    feature_head: FeatureLayer = setting(
        "none", "layer between backbone and ETF", origin="paper, as far as it says; its features are the backbone's"
    )
    logits: LogitKind = setting(
        "raw",
        "train on inner products or on scaled cosines",
        origin="paper; the released code of the same authors trains on cosines times 16",
    )
    logit_scale: float | Literal["learnable"] = setting(
        16.0, "scale of cosine logits", origin="released code of the same authors, for cosines"
    )
    etf: ETFSettings = Field(default_factory=ETFSettings, description="the classifier")
    gsa: GSASettings = Field(default_factory=lambda: GSASettings(), description="the loss")
    egc: EGCSettings = Field(default_factory=EGCSettings, description="the correction")
