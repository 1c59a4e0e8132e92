"""Federated features: synthetic features that imitate clients' classifier gradients, and a classifier made of them."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedfeat.core.rng import int_at
from fedfeat.core.settings import Settings
from fedfeat.methods.fedfsa.class_gradients import ClassGradients, LinearMap, fresh_linear, grouped_gradients

GUARD = 1e-6  # in the denominator of a cosine


class FeatureSettings(Settings):
    """How the server makes features and trains a classifier on them."""

    features_per_class: int = Field(100, ge=1, description="federated features of each class")
    match_epochs: int = Field(100, ge=0, description="steps on the features per round")
    match_lr: float = Field(0.1, gt=0, description="learning rate of the features")
    eta: float = Field(0.001, ge=0, description="weight of the prototype term")
    prototype_temperature: float = Field(0.1, gt=0, description="temperature of the prototype term")
    retrain_epochs: int = Field(300, ge=1, description="passes over the features when a classifier is re-trained")
    retrain_batch: int = Field(32, ge=1, description="features per step of re-training; 1024 is 32 times cheaper")
    retrain_lr: float = Field(0.01, gt=0, description="learning rate of re-training")


def row_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the sum over rows of one minus the cosine."""
    lengths = torch.linalg.vector_norm(ours, dim=-1) * torch.linalg.vector_norm(theirs, dim=-1)
    cosines: Tensor = (ours * theirs).sum(dim=-1) / (lengths + GUARD)
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
