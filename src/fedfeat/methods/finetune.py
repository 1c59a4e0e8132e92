r"""Plain federated averaging over a stream of tasks: nothing is kept of the past (the lower bound).

This is FedAvg, and `fedavg` is another name for it. Each task is trained on its own images alone. Whatever a method
does against forgetting is measured from here.

Objective:
    $$
    L = \begin{cases}
    \mathrm{CE}(z, y) & \text{in task 1, and with one new class} \\
    \mathrm{CE}(z_{\mathrm{new}}, y) & \text{afterwards, softmax = "new"} \\
    \mathrm{CE}(z, y) & \text{afterwards, softmax = "all"}
    \end{cases}
    $$

Deviations:
    - The learning rate and its cosine are those of the run; the released code of this baseline has 0.01 in it.
    - A task with one new class uses all classes, since a softmax over one class has no gradient.
"""

from __future__ import annotations

from typing import Literal

from fedfeat.algorithm.method import CROSS_ENTROPY, NEW_CLASS_CROSS_ENTROPY, Method
from fedfeat.algorithm.registry import base
from fedfeat.core.settings import Settings, setting


class FinetuneSettings(Settings):
    """Settings of finetune."""

    softmax: Literal["new", "all"] = setting(
        "new",
        "classes that compete from task 2 on; 'new' is what the published exemplar-free code does",
        origin="released code of TARGET and LANDER, where every method without exemplars trains this way",
    )


@base("finetune", FinetuneSettings, aliases=("fedavg",))
def finetune(settings: FinetuneSettings) -> Method:
    """FedAvg on each task's data alone: what forgetting looks like."""
    return Method("finetune", loss=CROSS_ENTROPY if settings.softmax == "all" else NEW_CLASS_CROSS_ENTROPY)
