"""CLIP2FL on the server: federated features and a re-trained classifier, kept beside the global model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedfeat.algorithm.method import ServerStep
from fedfeat.algorithm.server import Server
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.rng import int_at, rng_at
from fedfeat.core.settings import setting
from fedfeat.methods.clip2fl.client import BIAS, BIAS_GRADIENTS, CLASSES, WEIGHT, WEIGHT_GRADIENTS
from fedfeat.methods.clip2fl.federated_features import (
    ClassGradients,
    FeatureSettings,
    LinearMap,
    fresh_linear,
    grown_classifier,
    grown_features,
    match,
    mean_gradients,
    retrain,
)
from fedfeat.methods.clip2fl.teacher import Teacher

FEATURES, BRIDGE_WEIGHT, BRIDGE_BIAS = "clip2fl.features", "clip2fl.bridge_weight", "clip2fl.bridge_bias"


class ServerSettings(FeatureSettings):
    """What the server makes, and when."""

    server_every: int = setting(1, "rounds between two server steps; the last round of a task has one", ge=1)
    server_last_rounds: int | None = setting(
        None, "server steps in the last rounds of each task only; default is all rounds", ge=1
    )

    def is_active(self, round: int, rounds: int) -> bool:
        """Say whether a round (from 0) of a task has a server step."""
        left = rounds - 1 - round
        return left % self.server_every == 0 and (self.server_last_rounds is None or left < self.server_last_rounds)


class FederatedFeatures(ServerStep):
    """The server's step: features that match gradients and text, then a classifier re-trained on them."""

    def __init__(self, settings: ServerSettings, teacher: Teacher) -> None:
        self.settings, self.teacher = settings, teacher
        self.is_active = settings.is_active  # in which rounds of a task

    def broadcast(self, server: Server) -> Payload:
        """Send the classifier that gradients are measured at, in rounds that have a server step."""
        if not self.is_active(server.progress.round, server.settings.rounds):
            return {}
        classifier = self._classifier(server)
        return {WEIGHT: classifier.weight, BIAS: classifier.bias}

    def after_round(self, server: Server, replies: Mapping[int, Payload]) -> None:
        """Renew features and classifier; the global model is left alone."""
        sent = [(tensor_of(r, CLASSES), _gradients(r)) for _, r in sorted(replies.items()) if CLASSES in r]
        if not sent:
            return
        now, device = server.progress, server.images.device
        text = self.teacher.text(server.class_names).to(device)
        dim = server.model.network.head.dim
        features = grown_features(
            now.tensors.get(FEATURES), len(text), self.settings.features_per_class, dim, server.seed
        ).to(device)
        classes, target = mean_gradients(sent)
        features, bridge, loss = match(
            features, classes, target, self._classifier(server), text, self._bridge(server, text), self.settings
        )
        rng = rng_at(server.seed, "clip2fl-retrain", now.task, now.round)
        weight, bias = retrain(features, self.settings, rng)
        now.tensors |= {FEATURES: features, WEIGHT: weight, BIAS: bias}
        if bridge is not None:
            now.tensors |= {BRIDGE_WEIGHT: bridge.weight, BRIDGE_BIAS: bridge.bias}
        now.numbers["clip2fl.match_loss"] = loss

    def _classifier(self, server: Server) -> LinearMap:
        """Return the last re-trained classifier, with random rows for classes that came since."""
        kept = server.progress.tensors
        last = LinearMap(kept[WEIGHT], kept[BIAS]) if WEIGHT in kept else None
        seed = int_at(server.seed, "clip2fl-rows", server.progress.task)
        grown = grown_classifier(last, server.seen.num_classes, server.model.network.head.dim, seed)
        return LinearMap(*(t.to(server.images.device) for t in grown))

    def _bridge(self, server: Server, text: Tensor) -> LinearMap | None:
        """Return the layer from features to the teacher's space, or None where both have the same width."""
        kept, dim = server.progress.tensors, server.model.network.head.dim
        if BRIDGE_WEIGHT in kept:
            return LinearMap(kept[BRIDGE_WEIGHT], kept[BRIDGE_BIAS])
        if text.shape[1] == dim:
            return None
        fresh = fresh_linear(text.shape[1], dim, int_at(server.seed, "clip2fl-bridge"))
        return LinearMap(*(t.to(text.device) for t in fresh))


def _gradients(reply: Payload) -> ClassGradients:
    return ClassGradients(tensor_of(reply, WEIGHT_GRADIENTS), tensor_of(reply, BIAS_GRADIENTS))
