"""What guides a generator and its student: pure functions, and what BatchNorm remembers of real images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.core.errors import ConfigError

Moments = tuple[Tensor, Tensor]


def adversarial_loss(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return minus the mean KL(teacher || student), counting only images on whose class the two agree.

    Lowering it makes images on which the student is still unlike its teacher, without leaving their class.
    """
    agree = student_logits.argmax(dim=1) == teacher_logits.argmax(dim=1)
    return -(agree * _divergence(student_logits, teacher_logits)).mean()


def softened_divergence(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return T^2 times the mean KL(teacher || student) at temperature T: what the server's student learns by."""
    divergence = _divergence(student_logits / temperature, teacher_logits / temperature)
    return temperature**2 * divergence.mean()


def bounding_loss(mapped: Tensor, anchors: Tensor, radius: float) -> Tensor:
    """Return how far a batch is outside the ball around its anchors: max(0, MSE - radius), one hinge per batch."""
    return F.relu(F.mse_loss(mapped, anchors) - radius)


def _divergence(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    log_teacher = F.log_softmax(teacher_logits, dim=1)
    return (log_teacher.exp() * (log_teacher - F.log_softmax(student_logits, dim=1))).sum(dim=1)


def batch_norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the BatchNorm layers of a network; one without any is refused."""
    layers = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    if not layers:
        raise ConfigError(
            "model.norm: target and lander make images that match BatchNorm's running statistics, and this network "
            "has none; set model.norm to 'batch', and model.name to one that is not pre-trained"
        )
    return layers


def moments_distance(layer_moments: Moments, running: Moments, stored: Moments | None, momentum: float) -> Tensor:
    """Return the distance of mean and variance from the running ones, after blending with those of earlier rounds."""
    distance = torch.zeros((), device=running[0].device)
    for place, (now, target) in enumerate(zip(layer_moments, running, strict=True)):
        blended = now if stored is None else (1 - momentum) * now + momentum * stored[place]
        distance = distance + torch.linalg.vector_norm(target - blended)
    return distance


class BatchNormProbe:
    """Measures a frozen network's BatchNorm inputs while it is ``watching``."""

    def __init__(self, network: nn.Module, momentum: float = 0.9) -> None:
        self.layers = batch_norms(network)
        self.momentum = momentum
        self.current: dict[int, Moments] = {}
        self.stored: dict[int, Moments] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take in every forward pass until the block ends; the network is left without a trace."""
        hooks = [layer.register_forward_pre_hook(partial(self._take, i)) for i, layer in enumerate(self.layers)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _take(self, place: int, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        x: Tensor = inputs[0]
        # In bf16 the moments would be rounded to 8 bits, and what a round adds to the stored ones would get lost.
        variance, mean = torch.var_mean(x.float(), dim=(0, 2, 3), correction=0)
        self.current[place] = mean, variance

    def loss(self) -> Tensor:
        """Return the sum over layers of the last forward pass's distances; of that pass only values are kept."""
        distances = []
        for place, layer in enumerate(self.layers):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            running = layer.running_mean, layer.running_var
            mean, variance = self.current[place]
            distances.append(moments_distance((mean, variance), running, self.stored.get(place), self.momentum))
            # A graph that lives on would tie the next step to this one's stream, and could not be captured.
            self.current[place] = mean.detach(), variance.detach()
        return torch.stack(distances).sum()

    def remember(self) -> None:
        """Move the stored moments towards those of the last forward pass; the first ones are taken as they are."""
        for place, (mean, variance) in self.current.items():
            now = mean.detach(), variance.detach()
            kept = self.stored.get(place)
            self.stored[place] = now if kept is None else (self._moved(kept[0], now[0]), self._moved(kept[1], now[1]))
        self.current.clear()

    def _moved(self, kept: Tensor, now: Tensor) -> Tensor:
        return self.momentum * kept + (1 - self.momentum) * now
