"""Gradients of a linear classifier, class by class, and the federated features that imitate them.

The gradients have a closed form. Clients measure them; the server makes synthetic features that cause the same ones,
and trains a classifier on these features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.core.rng import int_at
from fedfeat.core.settings import Settings, setting

GUARD = 1e-6  # in the denominator of a cosine


class FeatureSettings(Settings):
    """How the server makes features and trains a classifier on them."""

    default_origin = "released code"

    features_per_class: int = setting(100, "federated features of each class", ge=1)
    match_epochs: int = setting(100, "steps on the features per round", ge=0)
    match_lr: float = setting(0.1, "learning rate of the features", gt=0)
    eta: float = setting(0.001, "weight of the prototype term", ge=0)
    prototype_temperature: float = setting(0.1, "temperature of the prototype term", gt=0)
    retrain_epochs: int = setting(300, "passes over the features when a classifier is re-trained", ge=1)
    retrain_batch: int = setting(32, "features per step of re-training; 1024 is 32 times cheaper", ge=1)
    retrain_lr: float = setting(0.01, "learning rate of re-training", gt=0)


class LinearMap(NamedTuple):
    """A linear layer as plain tensors."""

    weight: Tensor  # [outputs, inputs]
    bias: Tensor  # [outputs]

    def __call__(self, features: Tensor) -> Tensor:
        """Apply it to [..., inputs]."""
        return F.linear(features, self.weight, self.bias)


class ClassGradients(NamedTuple):
    """Gradients of the mean loss over samples of one class each."""

    weight: Tensor  # [c, C, d]
    bias: Tensor  # [c, C]


def grouped_gradients(features: Tensor, labels: Tensor, classifier: LinearMap) -> ClassGradients:
    """Return gradients of ``[c, n, d]`` features, n of each class ``labels[c]``: ``(p - e_y) f`` averaged over n."""
    residual = torch.softmax(classifier(features), dim=-1)
    residual = residual - F.one_hot(labels, residual.shape[-1]).to(residual)[:, None, :]
    return ClassGradients(residual.transpose(1, 2) @ features / features.shape[1], residual.mean(dim=1))


def class_gradients(features: Tensor, labels: Tensor, classes: Tensor, classifier: LinearMap) -> ClassGradients:
    """Return gradients of each class in ``classes``, whatever its number of rows in features [n, d]."""
    per_class = [grouped_gradients(features[labels == c][None], c[None], classifier) for c in classes]
    return ClassGradients(torch.cat([g.weight for g in per_class]), torch.cat([g.bias for g in per_class]))


def mean_gradients(sent: Sequence[tuple[Tensor, ClassGradients]]) -> tuple[Tensor, ClassGradients]:
    """Return the classes that somebody sent (ids, gradients) for, and each one's mean over its senders."""
    ids = torch.cat([classes for classes, _ in sent]).long()
    classes, place, owners = torch.unique(ids, return_inverse=True, return_counts=True)
    sums = []
    for stacked in (torch.cat([g.weight for _, g in sent]), torch.cat([g.bias for _, g in sent])):
        total = stacked.new_zeros(len(classes), *stacked.shape[1:])
        for row, target in zip(stacked, place.tolist(), strict=True):
            total[target] += row  # one by one: a parallel sum would not have the same bytes every time
        sums.append(total / owners.view(-1, *[1] * (total.ndim - 1)))
    return classes, ClassGradients(sums[0], sums[1])


def fresh_linear(outputs: int, inputs: int, seed: int) -> LinearMap:
    """Return uniform random numbers, as a linear layer starts."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(outputs, inputs + 1).uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
    return LinearMap(drawn[:, :inputs].contiguous(), drawn[:, inputs].contiguous())


def row_distance(made: Tensor, target: Tensor) -> Tensor:
    """Return the sum over rows of one minus the cosine."""
    lengths = torch.linalg.vector_norm(made, dim=-1) * torch.linalg.vector_norm(target, dim=-1)
    cosines: Tensor = (made * target).sum(dim=-1) / (lengths + GUARD)
    return (1 - cosines).sum()


def matching_loss(features: Tensor, classes: Tensor, target: ClassGradients, classifier: LinearMap) -> Tensor:
    """Return how far the gradients that features [c, n, d] cause are from those of clients: rows and the bias."""
    made = grouped_gradients(features, classes, classifier)
    return row_distance(made.weight, target.weight) + row_distance(made.bias, target.bias)


def prototype_term(features: Tensor, text: Tensor, temperature: float) -> Tensor:
    """Return cross-entropy over inner products with the classes' text features, for features [C, n, d]."""
    labels = torch.arange(len(features), device=features.device).repeat_interleave(features.shape[1])
    return F.cross_entropy(features.flatten(0, 1) @ text.T / temperature, labels)


def match(
    features: Tensor,
    classes: Tensor,
    target: ClassGradients,
    classifier: LinearMap,
    text: Tensor,
    bridge: LinearMap | None,
    settings: FeatureSettings,
) -> tuple[Tensor, LinearMap | None, float]:
    """Move features [C, n, d] towards the clients' gradients and the text; return them with the last loss.

    ``classes`` [c] are those that some client sent a gradient for; the others feel the prototype term alone.
    """
    trained = [features.clone().requires_grad_()]
    trained += [] if bridge is None else [t.clone().requires_grad_() for t in bridge]
    optimiser = torch.optim.SGD(trained, lr=settings.match_lr)
    loss = torch.zeros(())
    for _ in range(settings.match_epochs):
        seen = trained[0] if bridge is None else LinearMap(trained[1], trained[2])(trained[0])
        loss = matching_loss(trained[0][classes], classes, target, classifier)
        loss = loss + settings.eta * prototype_term(seen, text, settings.prototype_temperature)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    done = [t.detach() for t in trained]
    return done[0], None if bridge is None else LinearMap(done[1], done[2]), float(loss.detach())


@torch.no_grad()
def retrain(features: Tensor, settings: FeatureSettings, rng: np.random.Generator) -> LinearMap:
    """Return a fresh classifier trained on features [C, n, d], every class equally often."""
    num_classes, count, dim = features.shape
    start = fresh_linear(num_classes, dim, int(rng.integers(2**63)))
    weight, bias = start.weight.to(features), start.bias.to(features)
    flat = features.flatten(0, 1)
    targets = torch.eye(num_classes, device=features.device).repeat_interleave(count, dim=0)
    for _ in range(settings.retrain_epochs):
        order = torch.from_numpy(rng.permutation(len(flat))).to(features.device)
        for batch in torch.split(order, settings.retrain_batch):
            inputs = flat[batch]
            residual = torch.softmax(F.linear(inputs, weight, bias), dim=1).sub_(targets[batch])
            scale = -settings.retrain_lr / len(batch)
            weight.addmm_(residual.T, inputs, alpha=scale)
            bias.add_(residual.sum(dim=0), alpha=scale)
    return LinearMap(weight, bias)


def grown_features(features: Tensor | None, num_classes: int, count: int, dim: int, seed: int) -> Tensor:
    """Return features with standard normal rows for the classes that have none yet, each class at its address."""
    kept = 0 if features is None else len(features)
    fresh = [
        torch.randn(count, dim, generator=torch.Generator().manual_seed(int_at(seed, "federated-features", c)))
        for c in range(kept, num_classes)
    ]
    if features is None:
        return torch.stack(fresh)
    return torch.cat([features, torch.stack(fresh).to(features)]) if fresh else features


def grown_classifier(classifier: LinearMap | None, num_classes: int, dim: int, seed: int) -> LinearMap:
    """Return a classifier with random rows for the classes that it does not know yet."""
    if classifier is None:
        return fresh_linear(num_classes, dim, seed)
    rows = fresh_linear(num_classes - len(classifier.weight), dim, seed)
    return LinearMap(*(torch.cat([old, new.to(old)]) for old, new in zip(classifier, rows, strict=True)))
