"""Re-Fed+ (Li et al., Re-Fed, CVPR 2024, and its successor): keep the samples that a personalised model finds hard.

Before a task's data are dropped, each client briefly trains a personalised informative model (PIM) between its own
data and the global model, and keeps the samples with the largest accumulated gradient norm.

Objective:
    training:   L = CE(z, y)                              task's images and exemplars, all seen classes
    PIM:        v <- v - lr * (grad CE + q (v - theta)),  q = (1 - lambda) / (2 lambda),  v starts at theta
    score:      I(x) = sum over passes p of G_p(x) / p,   G_p(x) = norm of the gradient of CE(z_v(x), y)
    kept:       the samples of largest I(x), up to the client's quota, whatever their class

Deviations:
    - Of Re-Fed+ neither code nor more than its outline was at hand: its rule is taken to be that of Re-Fed.
    - The PIM starts at the final global model and sees images without augmentation, in one order for all passes.
    - A batch of one image goes through BatchNorm's running statistics.
"""

from __future__ import annotations

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.methods.refed.scores import InformativeChoice, RefedSettings


@base(
    "refed",
    RefedSettings,
    sends=(
        final_model("keep_informative"),
        Sent("down/keep_informative/quota", "how many images the client may keep"),
    ),
)
def refed(settings: RefedSettings) -> Method:
    """Re-Fed+: replay the samples with the largest gradients along a personalised model's path."""
    return Method("refed", replay=InformativeChoice(settings))
