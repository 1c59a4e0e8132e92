"""What clients need to know of a run: how they train, and what they do to an update before it leaves."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from fedfeat.core.settings import Settings


class TrainSettings(Settings):
    """Local training and averaging, the same for every method."""

    rounds: int = Field(100, ge=1, le=100_000, description="communication rounds per task")
    local_epochs: int = Field(2, ge=1, description="passes over the local set per round")
    batch: int = Field(128, ge=1, description="samples per step; the last, smaller batch is kept")
    lr: float = Field(0.04, gt=0, description="learning rate at the start of each task")
    lr_min: float = Field(1e-3, ge=0, description="learning rate that the cosine falls towards")
    schedule: Literal["cosine_per_task", "constant", "steps"] = Field(
        "cosine_per_task", description="learning rate over the rounds of a task"
    )
    milestones: tuple[int, ...] = Field(
        (50, 75), description="rounds of a task after which schedule steps divides the learning rate by ten"
    )
    repeat_exemplars: int = Field(1, ge=1, description="times that each exemplar is in a client's local set")
    paste: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that a replayed image is shrunk and pasted on a recoloured copy of itself when loaded",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum, started anew with every local update")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty on every trained number")
    aggregation: Literal["uniform", "samples"] = Field(
        "uniform", description="weight of a client in the average: equal, or by its number of samples"
    )
    server_momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of the server over the rounds of a task (FedAvgM); 0 takes the average"
    )
    robust: Literal["none", "median", "trimmed_mean", "krum", "multi_krum", "norm_bounding"] = Field(
        "none", description="rule against clients that do harm, for every number that the server joins"
    )
    attackers: float = Field(
        0.2, ge=0, lt=0.5, description="share of clients that robust rules trim on each side, or that Krum expects"
    )
    norm_bound: float | None = Field(
        None, gt=0, description="largest norm of an update under norm_bounding; unset: the median of its round"
    )
    model_selection: Literal["last", "lowest_train_loss", "mean"] = Field(
        "last",
        description="which model a task ends with: that of the last round, of the round with the lowest training "
        "loss, or the mean of the last rounds; never chosen on test data",
    )
    mean_rounds: int = Field(10, ge=1, description="rounds at the end of a task that model_selection mean joins")

    @model_validator(mode="after")
    def _cosine_goes_down(self) -> TrainSettings:
        if self.schedule == "cosine_per_task" and self.lr_min > self.lr:
            raise ValueError(f"lr_min ({self.lr_min}) must not exceed lr ({self.lr})")
        return self


def learning_rate(settings: TrainSettings, round: int) -> float:
    """Return the learning rate of a round (counted from 0) within its task."""
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "steps":
        passed = sum(round >= milestone for milestone in settings.milestones)
        return float(settings.lr * 0.1**passed)
    cosine = 0.5 * (1 + math.cos(math.pi * round / settings.rounds))
    return settings.lr_min + (settings.lr - settings.lr_min) * cosine


class PrivacySettings(Settings):
    """What clients do to their updates before they send them; nothing by default."""

    clip: float | None = Field(None, gt=0, description="largest norm of what a client's training changes; unset: any")
    noise: float | None = Field(
        None, gt=0, description="standard deviation of Gaussian noise on each number of the update, in units of clip"
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="delta at which the result states epsilon; unset: 0.00001"
    )
    secure_aggregation: bool | None = Field(
        None, description="clients mask their replies, so that the server learns sums over them alone; unset: no"
    )
    threshold: float | None = Field(
        None,
        gt=0.5,
        le=1,
        description="share of clients that must stay until a masked sum is opened; unset: more than half",
    )
    fewest_clients: int | None = Field(None, ge=2, description="fewest clients in a masked sum; unset: 3")
    bits: Literal[32, 64] | None = Field(None, description="bits of a masked number of an update; unset: 32")
    largest: float | None = Field(
        None, gt=0, description="largest change of one number of a masked update, cut beyond it; unset: 64"
    )

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> PrivacySettings:
        if self.noise is not None and self.clip is None:
            raise ValueError("noise is measured in units of clip; set clip too")
        if self.delta is not None and self.noise is None:
            raise ValueError("delta has no meaning without noise; set noise too, or leave delta out")
        return self

    @model_validator(mode="after")
    def _masks_are_asked_for(self) -> PrivacySettings:
        alone = [name for name in ("threshold", "fewest_clients", "bits", "largest") if getattr(self, name) is not None]
        if alone and not self.secure_aggregation:
            raise ValueError(f"{alone[0]} has no meaning without secure_aggregation = true; set it, or leave this out")
        return self
