r"""Balanced loss: the imbalance between old and new classes leaves the target of training, not the prediction.

On each client old classes are rare beside new ones. Logits are shifted by the log frequencies of what the client
trains on (logit adjustment: Menon et al., ICLR 2021; balanced softmax: Ren et al., NeurIPS 2020; with a client's own
frequencies: Zhang et al., ICML 2022), so that the network itself learns scores as if all classes were equally
frequent. Nothing is sent, and predictions need no correction.

Objective:
    $$
    L = \mathrm{CE}\left( z + \tau \log \pi_k, y \right), \qquad
    \pi_k(c) = \frac{n_k(c)}{\sum_{c'} n_k(c')}
    $$

    $n_k(c)$ counts the images of class $c$ in client $k$'s local set, exemplars included, plus `smooth`. With
    `scope = "groups"` it is the mean over the old classes for every old class, and the mean over the new classes for
    every new class: only the imbalance that a task brings is taken out, not what the partition brings, and task 1 is
    plain cross-entropy. With `scope = "client"` every class has its own count. Predictions use $z$ alone.

Deviations:
    - The groups of old and new classes are an addition. With a client's own counts a client that holds almost one
      class learns little of it.
    - Counts are of what the client trains on: held-out samples are not among them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Capturable, Method, Reference, ReferenceFunction
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload
from fedfeat.core.settings import Settings, setting
from fedfeat.methods.feat.correction import EnergyPrior

LOG_PRIOR = "log_prior"
Scope = Literal["groups", "client"]


class BalancedSettings(Settings):
    """Settings of the balanced loss."""

    scope: Scope = setting(
        "groups",
        "groups: one frequency for all old classes and one for all new ones; client: a client's own, class by class",
        origin="a choice: takes out what a task brings, not what the partition brings",
    )
    tau: float = setting(1.0, "strength of the adjustment; 0 is plain cross-entropy", origin="both papers", ge=0)
    smooth: float = setting(1.0, "added to every count, so that no class has none", origin="a choice", gt=0)
    from_task: int = setting(1, "first task that is balanced", origin="a choice", ge=1)


@addon("balanced", BalancedSettings, examples=("fedcbdr+etf+balanced",))
def balanced(method: Method, settings: BalancedSettings) -> Method:
    """A loss adjusted by how rare old classes are beside new ones on each client."""
    if method.loss.new_classes_only:
        raise ConfigError(
            f"method: balanced weighs old classes against new ones, and the softmax of {method.name!r} covers new "
            "classes only; put it on a replay base such as fedcbdr+etf+balanced"
        )
    if any(isinstance(statistic, EnergyPrior) for statistic in method.statistics):
        raise ConfigError(
            f"method: egc in {method.name!r} takes out an imbalance that balanced does not let arise; leave one of the "
            "two out, as in fedcbdr+etf+balanced"
        )
    term = LossTerm("balanced", adjusted_cross_entropy)
    predict = method.predict if method.corrects else None  # a division by temperatures goes with the loss it belongs to
    return replace(
        method, loss=term, predict=predict, balanced=True, references=(*method.references, ClassFrequencies(settings))
    )


def adjusted_cross_entropy(step: Step) -> Tensor:
    """Return cross-entropy of the adjusted logits."""
    return F.cross_entropy(step.logits + step.references[LOG_PRIOR], step.labels)


class ClassFrequencies(Reference):
    """The log frequencies of a client's local set, constant during a local update."""

    alike = True

    def __init__(self, settings: BalancedSettings) -> None:
        self.settings = settings

    def start(self, client: Client, request: Payload) -> ReferenceFunction:
        """Count what the client trains on."""
        settings = self.settings
        counts = torch.bincount(client.labels(client.local_set), minlength=client.num_classes)
        strength = settings.tau if client.task + 1 >= settings.from_task else 0.0
        prior = strength * log_frequencies(counts, client.num_old, scope=settings.scope, smooth=settings.smooth)
        return Capturable(constant, (prior,))


def constant(images: Tensor, prior: Tensor) -> dict[str, Tensor]:
    """Return the adjustment; it is the same for every batch."""
    return {LOG_PRIOR: prior}


def log_frequencies(counts: Tensor, num_old: int, *, scope: Scope = "groups", smooth: float = 1.0) -> Tensor:
    """Return ``log pi(c)`` of every seen class [C] from its number of samples.

    :param scope: ``groups`` gives all old classes their mean count and all new ones theirs; in the first task, where
        there are no old classes, all are equal.
    """
    smoothed = counts.float() + smooth
    if scope == "groups":
        old, new = smoothed[:num_old], smoothed[num_old:]
        smoothed = torch.cat([old.mean().expand_as(old), new.mean().expand_as(new)])
    return (smoothed / smoothed.sum()).log()
