"""CLIP2FL on a client: gradients of the server's classifier for each class, measured before local training."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Buffers, Statistic
from fedfeat.algorithm.sent import Sent
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.core.settings import Settings, setting
from fedfeat.data.augment import plan_epoch
from fedfeat.methods.clip2fl.federated_features import ClassGradients, LinearMap, class_gradients
from fedfeat.methods.clip2fl.siamese import augment

CLASSES, WEIGHT_GRADIENTS, BIAS_GRADIENTS = "clip2fl.classes", "clip2fl.weight_gradients", "clip2fl.bias_gradients"
WEIGHT, BIAS = "clip2fl.weight", "clip2fl.bias"
SENDS = tuple(
    replace(sent, often="S", asked_by=WEIGHT)
    for sent in (
        Sent(f"down/train/{WEIGHT}", "the classifier that gradients are measured at", ("C", "d")),
        Sent(f"down/train/{BIAS}", "its bias", ("C",)),
        Sent(f"up/train/{CLASSES}", "ids of the classes that the client holds", ("h",), kind="class"),
        Sent(f"up/train/{WEIGHT_GRADIENTS}", "gradient of a linear classifier for each of them", ("h", "C", "d")),
        Sent(f"up/train/{BIAS_GRADIENTS}", "its bias' gradient for each of them", ("h", "C")),
    )
)


class GradientSettings(Settings):
    """How a client measures the gradients of its classes."""

    default_origin = "released code"

    images_per_class: int = setting(32, "images behind one gradient of a class", ge=1)
    repeats: int = setting(10, "gradients of a class that are averaged", ge=1)
    augmentation: Literal["siamese", "run", "none"] = setting(
        "siamese",
        "of images behind gradients: one of colour, crop, cut-out, flip, scale and rotation at random "
        "(as published), the run's own, or none",
    )


class GradientsByClass(Statistic):
    """Gradients of the server's classifier on the received backbone, for each class that the client holds."""

    def __init__(self, settings: GradientSettings) -> None:
        self.settings = settings

    @torch.no_grad()
    def start(self, client: Client, request: Payload) -> Buffers:
        """Measure before training; only in rounds for which the server sent its classifier."""
        if WEIGHT not in request:
            return {}
        classifier = LinearMap(tensor_of(request, WEIGHT), tensor_of(request, BIAS))
        classes = torch.unique(client.labels(client.local_set))
        rng = rng_at(client.seed, "clip2fl-gradients", client.task, client.round, client.id)
        client.network.eval()
        total: ClassGradients | None = None
        for _ in range(self.settings.repeats):
            chosen = self._choose(client, classes, rng)
            made = class_gradients(self._features(client, chosen, rng), client.labels(chosen), classes, classifier)
            total = made if total is None else ClassGradients(total.weight + made.weight, total.bias + made.bias)
        assert total is not None
        repeats = self.settings.repeats
        return {
            CLASSES: classes.int(),
            WEIGHT_GRADIENTS: total.weight / repeats,
            BIAS_GRADIENTS: total.bias / repeats,
        }

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        """Return the gradients; the server step needs each client's own."""
        return dict(buffers)

    def _choose(self, client: Client, classes: Tensor, rng: np.random.Generator) -> Tensor:
        """Return indices of up to ``images_per_class`` random samples of each class."""
        local_set = client.local_set
        labels = client.labels(local_set)
        chosen = []
        for c in classes:
            members = local_set[labels == c]
            order = rng.permutation(len(members))[: self.settings.images_per_class]
            chosen.append(members[torch.from_numpy(order).to(members.device)])
        return torch.cat(chosen)

    def _features(self, client: Client, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        size = client.settings.batch
        kind = self.settings.augmentation
        plan = plan_epoch(rng, len(chosen), client.images.augmentation) if kind == "run" else None
        features = []
        for start in range(0, len(chosen), size):
            visited = slice(start, start + size)
            if plan is None:
                images = client.images.plain(chosen[visited])
                images = augment(images, rng) if kind == "siamese" else images
            else:
                images = client.images.augmented(chosen[visited], plan, visited)
            features.append(client.network.features(images))
        return torch.cat(features)
