r"""Nearest mean of exemplars (iCaRL's prediction; Rebuffi et al., CVPR 2017), on top of any base that replays.

At the end of a task clients add up the unit features of what they hold under the final model, class by class. The
server joins the sums into class means, and an image is given the class whose mean points most nearly its way.

Objective:
    Training as the base has it. Prediction is the class with the largest $\cos(f(x), m_c)$, where

    $$
    m_c = \frac{v_c}{\left\lVert v_c \right\rVert}, \qquad
    v_c = \sum_{k} \sum_{x \in \mathcal{D}_{k,c}} \frac{f(x)}{\left\lVert f(x) \right\rVert}
    $$

    sums over clients $k$ and their images $\mathcal{D}_{k,c}$ of class $c$.

Deviations:
    - Means of the classes of the task that has just ended are over all its images, not over exemplars alone; older
      classes have only exemplars left.
    - A class that nobody holds any more keeps its earlier mean; one that nobody ever held is never predicted.
    - The classifier's own predictions are reported as the uncorrected ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method, Op, Prediction, TaskEndStep
from fedfeat.algorithm.registry import NoSettings, addon
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.algorithm.step import Known, Seen
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.models import Network, Outputs

MEANS = "class_means"  # the server's tensor, [C, d]; a row of zeros for a class that nobody ever held
SUMS, COUNTS = "class_sums", "class_counts"
OUT_OF_REACH = -2.0  # below every cosine


class NearestMean(Prediction):
    """Predicts by the cosine with class means."""

    name, label, gives_cosines = "ncm", "class means", True

    def __call__(self, network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
        """Return cosines; the classifier's logits where no mean has been measured in this task's layout."""
        means = known.tensors.get(MEANS)
        if means is None or len(means) != seen.num_classes:
            return outputs.logits
        return mean_cosines(outputs.features, means)


@addon(
    "ncm",
    sends=(
        final_model("class_sums"),
        Sent(
            "up/class_sums/class_sums",
            "sum of unit features per seen class; of a class with one image, its feature",
            ("C", "d"),
            summed=True,
        ),
        Sent("up/class_sums/class_counts", "images per seen class", ("C",), kind="count", item=8, summed=True),
    ),
    prediction=NearestMean,
    examples=("herding+ncm",),
)
def ncm(method: Method, settings: NoSettings) -> Method:
    """iCaRL's prediction: the class with the nearest mean of exemplars, beside the classifier's own."""
    if method.replay is None:
        raise ConfigError(
            "method: ncm takes class means over exemplars, and this base keeps none; "
            "put it on a replay base such as herding+ncm"
        )
    if method.corrects:
        raise ConfigError("method: ncm and another part both decide how to predict; leave one of them out")
    return replace(method, task_end=(*method.task_end, ClassMeans()), predict=NearestMean())


class ClassMeans(TaskEndStep):
    """Gathers class means under the model that a task ended with, before exemplars are chosen from the task."""

    after_last = True

    def ops(self) -> dict[str, Op]:
        """Clients answer ``class_sums``."""
        return {SUMS: self.sum_up}

    def sum_up(self, client: Client, request: Payload) -> Payload:
        """Client: add up unit features of what it holds, class by class."""
        held = torch.cat([client.samples, client.exemplars])
        if len(held) == 0:
            return {}
        client.model.load(tensor_of(request, "weights"))
        labels = client.labels(held)
        return {
            SUMS: unit_sums(client.features(held), labels, client.num_classes),
            COUNTS: torch.bincount(labels, minlength=client.num_classes),
        }

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: ask every present client and join the answers in the order of their ids."""
        replies = task_end.exchange(SUMS, task_end.final_model())
        held = [(tensor_of(reply, SUMS), tensor_of(reply, COUNTS)) for _, reply in replies if reply]
        if not held:
            return
        sums, counts = (torch.stack(parts).sum(dim=0) for parts in zip(*held, strict=True))
        known = task_end.server.progress.tensors
        known[MEANS] = joined_means(sums, counts, known.get(MEANS))


def unit_sums(batches: Iterable[Tensor], labels: Tensor, num_classes: int) -> Tensor:
    """Return the sum of L2-normalised features per class, [C, d]; ``batches`` of features follow the labels."""
    unit = F.normalize(torch.cat(list(batches)).float(), dim=1, eps=1e-8)
    # A product instead of scattered additions, whose order is not fixed on a GPU.
    return F.one_hot(labels, num_classes).to(unit).T @ unit


def joined_means(sums: Tensor, counts: Tensor, earlier: Tensor | None) -> Tensor:
    """Return unit class means; a class without a sample keeps its earlier mean, or zeros."""
    means = F.normalize(sums, dim=1, eps=1e-8)
    if earlier is None:
        return means
    old = F.pad(earlier, (0, 0, 0, len(sums) - len(earlier)))
    return torch.where((counts > 0)[:, None], means, old)


def mean_cosines(features: Tensor, means: Tensor) -> Tensor:
    """Return cosines of features with class means, [B, C]; a class without a mean is out of reach."""
    cosines = F.normalize(features.float(), dim=1, eps=1e-8) @ means.T
    return torch.where((means != 0).any(dim=1), cosines, OUT_OF_REACH)
