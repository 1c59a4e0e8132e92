"""A head of three linear layers, its training on features drawn around class means, and the relation loss."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.step import Repeat, Work, as_it_is
from fedfeat.core.settings import Settings, setting
from fedfeat.models import LinearHead

TINY = 1e-12
ServerMode = Literal["p1", "p2", "p3", "p4", "p5"]


class ProjectedHead(LinearHead):
    """Pooled features, two linear layers with a ReLU between them, then a linear layer that grows with the classes.

    The feature of a network with this head is the pooled one: exemplars are selected by it and class means are
    taken of it. ``project`` gives what lies in the space of text features.
    """

    def __init__(self, dim: int, width: int, *, seed: int) -> None:
        super().__init__(width, seed=seed)
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, width))

    def project(self, features: Tensor) -> Tensor:
        """Return projected features [B, width]."""
        out: Tensor = self.layers(features)
        return out

    def classify(self, projected: Tensor) -> Tensor:
        """Return logits [B, C] of projected features."""
        return super().forward(projected)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [B, C]."""
        return self.classify(self.project(features))


class HeadTraining(Settings):
    """How the server trains a head."""

    default_origin = "released code"

    server_mode: ServerMode = setting(
        "p5",
        "what the server trains the head on: p1 class means, p2 draws around them, p3 both; "
        "p4 and p5: both, with the relation loss as well",
        origin="paper's abstract; p2 in the released code",
    )
    server_epochs: int = setting(100, "passes over the class means; 0 switches the step off", ge=0)
    server_batch: int = setting(32, "class means per step", ge=1)
    draws: int = setting(2, "features drawn around each class mean, anew in every pass", ge=1)
    relation: float = setting(1.0, "weight of the relation loss", ge=0)
    server_lr_first: float = setting(0.1, "learning rate in the first rounds of a task", gt=0)
    server_lr: float = setting(0.01, "learning rate afterwards", gt=0)
    first_rounds: int = setting(
        5, "rounds of a task that use server_lr_first", origin="released code, counted within a task here", ge=0
    )
    decay_every: int = setting(40, "passes after which the learning rate is divided by 10", ge=1)
    server_weight_decay: float = setting(1e-5, "L2 penalty on the head", ge=0)
    clamp: bool = setting(False, "keep drawn features non-negative, as pooled ones are")


class Prototypes(NamedTuple):
    """Classes as some clients saw them: a row per client and class."""

    labels: Tensor  # [P]
    means: Tensor  # [P, d]
    variances: Tensor  # [P, d]


def train_head(
    head: ProjectedHead,
    seen: Prototypes,
    text: Tensor,
    settings: HeadTraining,
    rng: np.random.Generator,
    round: int,
    repeat: Repeat = as_it_is,
) -> float:
    """Train a head in place and return the last pass's mean loss; ``round`` counts within the task."""
    if settings.server_epochs == 0:
        return 0.0
    trained = _own_copy(head)
    first = settings.server_lr_first if round < settings.first_rounds else settings.server_lr
    lr, total = (torch.zeros((), device=text.device) for _ in range(2))
    decay = settings.server_weight_decay
    optimiser = torch.optim.SGD(trained.parameters(), lr=lr, weight_decay=decay, fused=True)
    by_class = relations(text)
    noise = torch.empty(0)

    def step_on(batch: Tensor) -> Work:
        def step() -> None:
            features, labels = server_batch(seen, batch, noise, settings)
            loss = head_loss(trained, features, labels, by_class, settings)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total.add_(loss.detach() * len(batch))

        return repeat(step, [*trained.parameters(), total])

    steps: dict[int, tuple[Tensor, Work]] = {}  # by the size of a batch: where it lies, and a step on it
    for epoch in range(settings.server_epochs):
        lr.fill_(first * 0.1 ** (epoch // settings.decay_every))
        total.zero_()
        order = torch.from_numpy(rng.permutation(len(seen.labels))).to(text.device)
        drawn = draw_noise(seen, settings, rng)
        noise = drawn if epoch == 0 else noise.copy_(drawn)  # captured steps read it there
        for batch in torch.split(order, settings.server_batch):
            if len(batch) not in steps:
                place = batch.clone()
                steps[len(batch)] = place, step_on(place)
            place, step = steps[len(batch)]
            place.copy_(batch)
            step()
    head.load_state_dict(trained.state_dict())
    return float(total) / len(seen.labels)


def draw_noise(seen: Prototypes, settings: HeadTraining, rng: np.random.Generator) -> Tensor:
    """Return standard normal draws [draws, P, d]; nothing is drawn where only means are used."""
    draws = 0 if settings.server_mode == "p1" else settings.draws
    noise = rng.standard_normal((draws, *seen.means.shape), dtype=np.float32)
    return torch.from_numpy(noise).to(seen.means.device)


def server_batch(seen: Prototypes, batch: Tensor, noise: Tensor, settings: HeadTraining) -> tuple[Tensor, Tensor]:
    """Return the inputs of one step and their labels: means, draws around them, or both."""
    drawn = seen.means[batch] + noise[:, batch] * seen.variances[batch].sqrt()
    if settings.clamp:
        drawn = drawn.clamp(min=0)
    if settings.server_mode in ("p1", "p3", "p4", "p5"):
        drawn = torch.cat([seen.means[batch][None], drawn])
    return drawn.flatten(0, 1), seen.labels[batch].repeat(len(drawn))


def head_loss(head: ProjectedHead, features: Tensor, labels: Tensor, text: Relations, settings: HeadTraining) -> Tensor:
    """Return cross-entropy, plus the relation loss in modes p4 and p5; a single sample has no relations.

    ``text`` are the relations of the classes' text features.
    """
    projected = head.project(features)
    loss = F.cross_entropy(head.classify(projected), labels)
    if settings.server_mode in ("p4", "p5") and settings.relation and len(features) > 1:
        loss = loss + settings.relation * relation_loss(relations(projected), text.at(labels))
    return loss


def _own_copy(head: ProjectedHead) -> ProjectedHead:
    """Return a copy with parameters of its own: those of a network are views into its one vector."""
    first = head.layers[0].weight
    assert isinstance(first, Tensor)
    copied = ProjectedHead(first.shape[1], head.dim, seed=head.seed)
    copied.grow(head.num_classes, 0)
    copied.to(first.device).load_state_dict(head.state_dict())
    return copied


class Relations(NamedTuple):
    """How vectors lie to each other."""

    distances: Tensor  # [N, N]
    cosines: Tensor  # [j, i, k]: of the angle at j between i and k

    def at(self, labels: Tensor) -> Relations:
        """Return the relations of rows that may repeat."""
        cosines = self.cosines
        for axis in range(3):
            cosines = cosines.index_select(axis, labels)
        return Relations(self.distances[labels][:, labels], cosines)


def relations(vectors: Tensor) -> Relations:
    """Return distances and angles of vectors [N, d].

    Distances come from differences, so that equal rows are exactly 0 apart; cosines come from distances by the law
    of cosines, which spares a product of all triples. A side of length 0 has no direction: its cosines are 0.
    """
    distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    squares = distances.square()
    inverse = torch.where(distances > 0, 1 / distances.clamp(min=TINY), torch.zeros_like(distances))
    sums = squares[:, :, None] + squares[:, None, :] - squares[None, :, :]
    return Relations(distances, 0.5 * sums * inverse[:, :, None] * inverse[:, None, :])


def relation_loss(student: Relations, teacher: Relations) -> Tensor:
    """Return the mean squared difference of distances plus that of cosines.

    Distances are divided by the mean of the positive ones. A teacher whose rows are all equal has nothing to say:
    the loss is then 0.
    """
    distance = (_relative(student.distances) - _relative(teacher.distances)).square().mean()
    angle = (student.cosines - teacher.cosines).square().mean()
    return (distance + angle) * (teacher.distances > 0).any()


def _relative(distances: Tensor) -> Tensor:
    mean = distances.sum() / (distances > 0).sum().clamp(min=1)
    return distances / mean.clamp(min=TINY)
