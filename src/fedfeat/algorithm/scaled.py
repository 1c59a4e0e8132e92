"""A prediction that belongs to a base's own loss: logits divided by the temperatures they were trained with."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfeat.algorithm.method import Method, Prediction
from fedfeat.algorithm.step import Known, Seen
from fedfeat.models import Network, Outputs


class ScaledLogits(Prediction):
    """Logits of old and of new classes, each divided by its temperature."""

    name, label, replaceable = "scaled", "divided by temperatures", True

    def __init__(self, tau_old: float, tau_new: float) -> None:
        self.tau_old, self.tau_new = tau_old, tau_new

    def __call__(self, network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
        """Return divided logits; in the first task there is one temperature for all, which changes nothing."""
        return self.divided(outputs.logits, seen.num_old)

    def divided(self, logits: Tensor, num_old: int) -> Tensor:
        """Return logits [B, C] over their temperatures, old classes first."""
        if num_old == 0:
            return logits
        return torch.cat([logits[:, :num_old] / self.tau_old, logits[:, num_old:] / self.tau_new], dim=1)


def scaling_of(method: Method) -> ScaledLogits | None:
    """Return the division that a method predicts with, if it has one."""
    return method.predict if isinstance(method.predict, ScaledLogits) else None
