"""The gradient of cross-entropy with respect to a linear classifier, class by class and in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


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
