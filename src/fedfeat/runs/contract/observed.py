"""A run with open eyes: which samples each client looked at, what it answered, what was wrong with that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload, value_bytes
from fedfeat.data.augment import DeviceImages
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.screen import declared_losses, fault_of
from fedfeat.runs.experiment import Experiment


class Answer(NamedTuple):
    """What a client sent in one exchange."""

    op: str
    client: int
    task: int  # from 0
    entries: frozenset[str]
    bytes: int
    fault: str | None  # for which a federation would refuse it
    images: str | None  # the entry that looks like images, if one does


class Watched(DeviceImages):
    """Notes which samples each client looks at."""

    def __init__(self, images: DeviceImages) -> None:
        self.__dict__.update(images.__dict__)
        self.looked: dict[int, set[int]] = {}
        self.current = -1

    def _note(self, indices: Tensor) -> None:
        self.looked.setdefault(self.current, set()).update(indices.tolist())

    def plain(self, indices: Tensor) -> Tensor:
        """Return images as they are."""
        self._note(indices)
        return super().plain(indices)

    def augmented(self, indices: Tensor, *args: Any) -> Tensor:
        """Return augmented images."""
        self._note(indices)
        return super().augmented(indices, *args)


class Observed:
    """Listens to an experiment that has not begun."""

    def __init__(self, experiment: Experiment) -> None:
        self.engine: InProcessEngine = experiment.engine
        self.sends = {**experiment.method.sends, **declared_losses(experiment.method)}
        self.images = Watched(self.engine.train_images)
        self.answers: list[Answer] = []
        self.engine.train_images = self.images
        make_client, ask = self.engine.client, self.engine.ask

        def client(client_id: int) -> Client:
            self.images.current = client_id
            return make_client(client_id)

        def listening(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
            for client_id, reply in ask(op, requests):
                if not isinstance(reply, Lost):
                    self.answers.append(self._answer(op, client_id, requests[client_id], reply))
                yield client_id, reply

        self.engine.client, self.engine.ask = client, listening  # type: ignore[method-assign]

    def _answer(self, op: str, client: int, request: Payload, reply: Payload) -> Answer:
        fault = fault_of(op, request, reply, self.sends, self.engine.reply_sizes(client))
        fault = fault or self._rows(op, client, reply)
        size = sum(value_bytes(value) for value in reply.values())
        pixels = self.images.images[0].numel()
        images = (n for n, v in reply.items() if isinstance(v, Tensor) and _like_images(v, pixels))
        return Answer(op, client, self.engine.task, frozenset(reply), size, fault, next(images, None))

    def _rows(self, op: str, client_id: int, reply: Payload) -> str | None:
        """Return which entry has another number of rows than the client's samples, or the classes that it holds."""
        if not reply:  # a client that is looked at would make the choices that wait
            return None
        client = self.engine.client(client_id)
        known = {"n": len(client.samples), "h": len(torch.unique(client.labels(client.local_set)))}
        for name, value in reply.items():
            sent = self.sends.get(name)
            if sent is None or sent.op not in (op, "*") or sent.at_most or not isinstance(value, Tensor):
                continue
            for symbol, came in zip(sent.shape or (), value.shape, strict=False):
                if known.get(str(symbol), came) != came:
                    return f"{name}: expected {known[str(symbol)]} rows, got {came}"
        return None


def _like_images(value: Tensor, pixels: int) -> bool:
    return value.ndim > 1 and not value.is_floating_point() and value.shape[1:].numel() == pixels
