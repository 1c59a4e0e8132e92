"""The server's student: a fresh network of the teacher's kind that learns from the pool and shows what it lacks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.repeat import Repeat, as_it_is
from fedfeat.methods.data_free.losses import softened_divergence
from fedfeat.methods.data_free.replay import mapped
from fedfeat.models import Network


def new_student(teacher: Network, seed: int) -> Network:
    """Return a copy that knows nothing: Xavier normal weights, zero biases, BatchNorm scales from N(1, 0.02)."""
    student = copy.deepcopy(teacher)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.ndim == 0:
                continue  # the scale of a cosine head, which means the same for every network
            drawn = torch.zeros(parameter.shape)
            if parameter.ndim > 1:
                nn.init.xavier_normal_(drawn, generator=generator)
            parameter.copy_(drawn)
        for module in student.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.weight.copy_(torch.normal(1.0, 0.02, module.weight.shape, generator=generator))
    return student.eval().requires_grad_(False)


def distil(
    student: Network,
    teacher: Network,
    batches: Iterator[Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    steps: int,
    temperature: float,
    mapping_weight: float = 0.0,
    repeat: Repeat = as_it_is,
) -> None:
    """Train the student on batches of the pool, all of one size; it is frozen again afterwards."""
    student.train().requires_grad_(True)
    images = next(batches).clone()  # every later batch comes to the same place

    def step() -> None:
        with torch.no_grad():
            wanted = teacher(images)
        found = student(images)
        loss = softened_divergence(found.logits, wanted.logits, temperature)
        if mapping_weight:
            with torch.no_grad():
                wanted_map = mapped(teacher, wanted.features)
            loss = loss + mapping_weight * F.mse_loss(mapped(student, found.features), wanted_map)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    step()  # the first one may make what the optimiser keeps
    kept = [value for state in optimiser.state.values() for value in state.values() if isinstance(value, Tensor)]
    again = repeat(step, [*student.parameters(), *student.buffers(), *kept]) if steps > 1 else step
    for _ in range(steps - 1):
        images.copy_(next(batches))
        again()
    student.eval().requires_grad_(False)
