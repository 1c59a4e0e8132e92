"""What several methods do on a client besides training: walk over its samples, keep a vector across tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from fedfeat.data.augment import draw_epoch
from fedfeat.draws import draw_at
from fedfeat.federation.payload import number_of, tensor_of

if TYPE_CHECKING:
    from fedfeat.federation.client import Client


def epoch_of(client: Client, purpose: str, epoch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and labels of this task's samples, batch by batch, shuffled and augmented as in training."""
    rng = draw_at(client.config.seed, purpose, client.task, client.id, epoch)
    draws = draw_epoch(rng, len(client.samples), client.images.augmentation)
    order = client.samples[draws.order.to(client.samples.device)]
    size = client.config.train.batch
    for start in range(0, len(order), size):
        visited = slice(start, start + size)
        yield client.images.augmented(order[visited], draws, visited), client.labels(order[visited])


def remember(client: Client, name: str, vector: Tensor) -> None:
    """Keep a vector of the trainable layout in the client's state, off the device."""
    client.state[name] = vector.detach().cpu()
    client.state[_classes(name)] = client.num_classes


def recall(client: Client, name: str) -> Tensor | None:
    """Return a remembered vector in today's layout, zero for classes that came since; None if there is none."""
    if name not in client.state:
        return None
    vector = tensor_of(client.state, name).to(client.device)
    return client.model.widened(vector, int(number_of(client.state, _classes(name))))


def _classes(name: str) -> str:
    # A client may miss tasks, so the layout that a vector belongs to has to be kept with it.
    return f"{name}.classes"
