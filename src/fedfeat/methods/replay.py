"""Bases that differ only in what they keep: everything, random exemplars, or exemplars near the class mean.

All three train on the task's images and on what was kept, shuffled together, with plain cross-entropy.

Objective:
    L = CE(z, y)        over all seen classes, on the task's images and the exemplars
"""

from __future__ import annotations

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.registry import NoSettings, base
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.methods.exemplar_rules import Everything, Herding, UniformChoice


@base("joint")
def joint(settings: NoSettings) -> Method:
    """Every client keeps all it ever saw: the upper bound, outside any budget.

    Every client keeps all its images of every task. No budget holds, so this is an upper bound, not a competitor.

    Deviations:
        none: this is a bound and not a published method
    """
    return Method("joint", replay=Everything())


@base("replay", sends=(Sent("down/keep_random/quota", "how many images the client may keep"),))
def replay(settings: NoSettings) -> Method:
    """Each client replays exemplars chosen at random.

    At the end of a task each client keeps images chosen at random, up to its share of the budget.
    Whatever a better rule gains is measured from here.

    Deviations:
        none: this is a reference rule and not a published method
    """
    return Method("replay", replay=UniformChoice())


@base(
    "herding",
    sends=(final_model("keep_herded"), Sent("down/keep_herded/quota", "how many images the client may keep")),
)
def herding(settings: NoSettings) -> Method:
    """Each client replays the exemplars whose mean stays closest to its class means (iCaRL's rule).

    iCaRL's rule (Rebuffi et al., CVPR 2017) on each client: images are added one by one, so that the mean of their
    unit features stays as close as possible to the mean of the class.

    Deviations:
        - Means are those of the client's own images, not of all images of the class.
        - A client splits its quota evenly over the classes it holds. Nothing is dropped later: the budget is per task.
        - The classifier predicts; `ncm` adds iCaRL's prediction. iCaRL's sigmoid loss and distillation are left out.
    """
    return Method("herding", replay=Herding())
