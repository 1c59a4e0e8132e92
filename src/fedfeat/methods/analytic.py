r"""Analytic classifier on a frozen backbone (ACIL: Zhuang et al., NeurIPS 2022; AFL: He et al., CVPR 2025).

Nothing is trained, and nothing is sent down: clients build the backbone themselves. Each client sends, once per task,
the Gram matrix of its features and their products with the one-hot labels, which are their sums by class. The server
adds them up and solves a ridge regression. Sums know no order, so the classifier equals the one that all images in one
place would give, whatever the partition and the order of tasks; nothing is forgotten and no exemplar is kept. All of it
depends on the features: it is the baseline to look at first with a pre-trained backbone, `model.name = "hf"` and
`model.tune = "nothing"`. Without one it takes the freshly initialised network, and the log says so.

Objective:
    $$
    \min_{W, b} \; \sum_{i} \left\lVert W x_i + b - e_{y_i} \right\rVert^2 + \lambda \left\lVert W \right\rVert^2,
    \qquad \lambda = \rho \, \frac{\mathrm{tr}\, G}{d}, \qquad G = \sum_i x_i x_i^\top
    $$

    over all images $i$ of all tasks so far, with features $x_i$ and unit vectors $e_c$; $\rho$ is `ridge`. With $n_c$
    images of class $c$, their sum of features $s_c$, $n = \sum_c n_c$ and the mean feature $m = \sum_c s_c / n$ the
    solution is

    $$
    W_c = (s_c - n_c m)^\top \left( G - n\, m m^\top + \lambda I \right)^{-1}, \qquad
    b_c = \frac{n_c}{n} - W_c m
    $$

    so $G$, $s_c$ and $n_c$ are all that the server needs. They are sums over clients and tasks, in double precision.

Deviations:
    - ACIL trains the backbone on the first task and widens features by a random layer; here the backbone stays as it
      is and the features are its own, as in AFL.
    - Both solve without an intercept by default; here the classifier has one, which the penalty leaves alone.
    - AFL sends each client's own solution beside its Gram matrix and joins clients in pairs; sums give the same result.
    - The penalty is relative to the mean square of the features, so one value fits features of any scale.
    - A client that drops out at the end of a task is left out: its images of that task stay missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method, Op, TaskEndStep
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import Sent
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.settings import Settings, setting

OP = "feature_sums"
GRAM, CLASSES, SUMS, COUNTS = "gram", "held_classes", "class_sums", "class_counts"


class AnalyticSettings(Settings):
    """Settings of the analytic classifier."""

    ridge: float = setting(
        1e-4,
        "penalty on the squared weights, in units of the mean square of a feature summed over all images",
        origin="a choice: on held-out digits, from 0.000001 to 0.001 the accuracy differs by less than a point",
        gt=0,
    )


class FeatureSums(NamedTuple):
    """All that a ridge regression needs to know of images: sums over them, in double precision."""

    gram: Tensor  # upper triangle of the sum of x x^T, row by row, [d (d + 1) / 2]
    class_sums: Tensor  # sum of the features of each class, [C, d]
    class_counts: Tensor  # images of each class, [C]


@base(
    "analytic",
    AnalyticSettings,
    sends=(
        Sent(
            f"up/{OP}/{GRAM}",
            "upper triangle of the Gram matrix of its features; of a single image, the products of its feature",
            ("triangle",),
            item=8,
            summed=True,
        ),
        Sent(f"up/{OP}/{CLASSES}", "classes that it holds", ("h",), kind="class", item=8, summed=True),
        Sent(
            f"up/{OP}/{SUMS}",
            "sum of features per class that it holds; of a class with one image, its feature",
            ("h", "d"),
            item=8,
            summed=True,
        ),
        Sent(f"up/{OP}/{COUNTS}", "images per class that it holds", ("h",), kind="count", item=8, summed=True),
    ),
)
def analytic(settings: AnalyticSettings) -> Method:
    """Ridge regression on the features of a frozen backbone, exact whatever the partition and the order of tasks."""
    note = "analytic: nothing is trained and nothing sent down; of [train], only batch is used"
    return Method("analytic", trains=False, task_end=(RidgeRegression(settings.ridge),), notes=(note,))


class RidgeRegression(TaskEndStep):
    """Adds up what clients send of a task, and solves for the classifier of all classes so far."""

    after_last = True

    def __init__(self, ridge: float) -> None:
        self.ridge = ridge

    def ops(self) -> dict[str, Op]:
        """Clients answer ``feature_sums``."""
        return {OP: self.sum_up}

    def sum_up(self, client: Client, request: Payload) -> Payload:
        """Client: sum up the features of this task's images, under the backbone that it has from the start."""
        if len(client.samples) == 0:
            return {}
        found = feature_sums(features_of(client), client.labels(client.samples), client.num_classes)
        held = found.class_counts.nonzero().flatten()
        return {GRAM: found.gram, CLASSES: held, SUMS: found.class_sums[held], COUNTS: found.class_counts[held]}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: add the replies to what earlier tasks left, and write the solution into the classifier."""
        server = task_end.server
        total = known_sums(server.progress.tensors, server.seen.num_classes, server.model.network.head.dim)
        for _, reply in task_end.exchange(OP, {k: {} for k in sorted(task_end.quotas)}):
            total = joined(total, reply) if reply else total
        if int(total.class_counts.sum()) == 0:
            return
        server.progress.tensors |= total._asdict()
        weight, bias = ridge_solution(total, self.ridge)
        server.model.load(server.progress.weights)
        values = server.model.named_values()
        values["head.weight"].copy_(weight)
        values["head.bias"].copy_(bias)
        server.progress.weights = server.model.vector.clone()


def features_of(client: Client) -> Tensor:
    """Return the features of this task's images in double precision, [n, d].

    The last batch is filled up: kernels for fewer images may round otherwise, and a feature should not depend on how
    many images its client holds.
    """
    own = client.samples
    surplus = own[:1].expand(-len(own) % client.settings.batch)
    return torch.cat(list(client.features(torch.cat([own, surplus]))))[: len(own)].double()


def known_sums(tensors: Mapping[str, Tensor], num_classes: int, dim: int) -> FeatureSums:
    """Return the sums over all images so far, with rows of zeros for classes that came since."""
    if GRAM not in tensors:
        empty = torch.zeros(0, dim, dtype=torch.float64)
        tensors = {GRAM: torch.zeros(dim * (dim + 1) // 2).double(), SUMS: empty, COUNTS: torch.zeros(0).long()}
    new = num_classes - len(tensors[COUNTS])
    return FeatureSums(tensors[GRAM], F.pad(tensors[SUMS], (0, 0, 0, new)), F.pad(tensors[COUNTS], (0, new)))


def joined(total: FeatureSums, reply: Payload) -> FeatureSums:
    """Return the sums with those of one more client, which tells of the classes that it holds."""
    classes, gram = tensor_of(reply, CLASSES), tensor_of(reply, GRAM)
    sums, counts = total.class_sums.to(gram), total.class_counts.to(classes)
    return FeatureSums(
        total.gram.to(gram) + gram,
        sums.index_add(0, classes, tensor_of(reply, SUMS)),
        counts.index_add(0, classes, tensor_of(reply, COUNTS)),
    )


def feature_sums(features: Tensor, labels: Tensor, num_classes: int) -> FeatureSums:
    """Return the sums over images with the given features [n, d] and labels [n]."""
    rows, columns = torch.triu_indices(features.shape[1], features.shape[1], device=features.device)
    one_hot = F.one_hot(labels, num_classes)
    # A product instead of scattered additions, whose order is not fixed on a GPU.
    return FeatureSums((features.T @ features)[rows, columns], one_hot.to(features).T @ features, one_hot.sum(dim=0))


def ridge_solution(known: FeatureSums, ridge: float) -> tuple[Tensor, Tensor]:
    """Return weights [C, d] and biases [C] of the ridge regression on one-hot labels, in double precision."""
    dim, counts = known.class_sums.shape[1], known.class_counts.double()
    rows, columns = torch.triu_indices(dim, dim, device=known.gram.device)
    gram = known.gram.new_zeros(dim, dim)
    gram[rows, columns] = known.gram
    gram[columns, rows] = known.gram
    total, mean = counts.sum(), known.class_sums.sum(dim=0) / counts.sum()
    penalty = ridge * gram.trace() / dim
    if penalty == 0:  # every feature is zero: nothing but the frequencies of the classes is known
        return torch.zeros_like(known.class_sums), counts / total
    system = gram - total * torch.outer(mean, mean) + penalty * torch.eye(dim).to(gram)
    weight = torch.linalg.solve(system, (known.class_sums - torch.outer(counts, mean)).T).T
    return weight, counts / total - weight @ mean
