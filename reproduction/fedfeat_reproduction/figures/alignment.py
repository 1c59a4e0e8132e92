"""How alike the features are that different clients' models make of the same images."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F


def centred(features: Tensor) -> Tensor:
    """Return directions of features [K, N, d] around their common mean over all models and images.

    Features behind a ReLU share a large mean; with it, any two of them look alike.
    """
    unit = F.normalize(features.double(), dim=2, eps=1e-12)
    return unit - unit.mean(dim=(0, 1), keepdim=True)


def client_alignment(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean cosine between two clients' features of the same image, per class and pair: [C, pairs].

    :param features: [K, N, d], the same N images through each of K models.
    :param labels: [N], in ``0..num_classes-1``; a class without an image gives nan.
    """
    unit = F.normalize(features.double(), dim=2, eps=1e-12)
    pairs = list(combinations(range(len(unit)), 2))
    cosines = torch.stack([(unit[a] * unit[b]).sum(dim=1) for a, b in pairs])
    members = F.one_hot(labels, num_classes).double()
    return (cosines @ members / members.sum(dim=0)).T
