"""Several models of one layout, trained in one step: the vectors of clients are the rows of a matrix.

``torch.func.vmap`` turns the network and the loss terms, written for one client, into functions of the whole stack: a
convolution becomes a grouped one, and BatchNorm sees each client's batch by itself. The clients' losses do not depend
on each other's weights, so the gradient of their sum holds the gradient of each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.method import ActiveParts, Capturable
from fedfeat.algorithm.step import Objective, References
from fedfeat.data.augment import change_columns
from fedfeat.engines.base import BaseEngine
from fedfeat.engines.cuda.capture import captured
from fedfeat.engines.grouping import padded
from fedfeat.federation.training import sgd, train_step
from fedfeat.models import Network, as_vector

Convolutions = Literal["grouped", "products"]
Referred = list[Tensor] | dict[str, Tensor]  # of one reference: its clients' tensors, or what it found for them
Key = tuple[int, int, bool]  # places, batch size, whether these are the first rows


class ProductConv(nn.Conv2d):
    """A convolution as one matrix product, which libraries batch over clients better than grouped convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the same sums as ``nn.Conv2d``, of windows laid out as columns."""
        (height, width), (down, right) = self.kernel_size, self.stride
        vertical, horizontal = int(self.padding[0]), int(self.padding[1])
        wide = F.pad(x, (horizontal, horizontal, vertical, vertical))
        windows = wide.unfold(2, height, down).unfold(3, width, right)  # [B, in, rows, columns, height, width]
        count, _, rows, columns = windows.shape[:4]
        out = self.weight.flatten(1) @ windows.permute(1, 4, 5, 0, 2, 3).reshape(self.weight[0].numel(), -1)
        return out.view(-1, count, rows, columns).transpose(0, 1)


class BatchLoss(nn.Module):
    """An objective as a module: a batch goes in, weighted losses [terms] come out."""

    def __init__(self, network: Network, objective: Objective) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(self, images: Tensor, labels: Tensor, references: References) -> Tensor:
        """Run the batch of one client."""
        return self.objective(images, labels, references)[1]


class Stack:
    """Models, velocities, plans and losses of up to ``rows`` clients, and the step that moves some of them on.

    One row more than asked for belongs to nobody: a captured step of fewer clients than it has places fills them
    with it.
    """

    def __init__(self, engine: BaseEngine, rows: int, longest: int, convolutions: Convolutions | None = None) -> None:
        self.engine, self.rows, self.longest = engine, rows, longest
        self.model, self.images = engine.model, engine.train_images
        self.train, self.grad_clip = engine.config.train, engine.method.grad_clip
        terms = engine.method.active_terms(engine.task)
        usual: Convolutions = "products" if engine.device.type == "cuda" else "grouped"
        network = _template(engine.network, convolutions or usual)
        objective = Objective(network, engine.seen, terms, engine.method.wants_intermediate)
        self.loss = BatchLoss(network, objective).train()
        self._losses = torch.vmap(self._losses_of_one, randomness="same")
        size, device = rows + 1, engine.device
        self.vectors = torch.zeros(size, len(self.model.vector), device=device)
        self.velocity = torch.zeros(size, self.model.num_trainable, device=device)
        self.lr = torch.zeros((), device=device)
        # Rows without a plan point at a sample of the current task, which the head knows.
        valid = int(engine.scenario.splits[engine.task].indices[0])
        self.order = torch.full((size, longest), valid, device=device)
        self.crops = torch.zeros(size, longest, 2, dtype=torch.long, device=device)
        self.flips = torch.zeros(size, longest, dtype=torch.bool, device=device)
        self.brightness = torch.ones(size, longest, device=device)
        columns = change_columns(self.images.augmentation, self.train.paste)
        self.changes = torch.zeros(size, longest, columns, device=device)
        self.samples = torch.ones(size, dtype=torch.long, device=device)
        self.cursor = torch.zeros(size, dtype=torch.long, device=device)
        self.sums = torch.zeros(size, self.train.local_epochs, len(terms), device=device)
        self.references: list[Capturable] = []  # each with the tensors of all rows, side by side

    def bind(self, parts: Sequence[ActiveParts]) -> None:
        """Lay the tensors of the clients' references side by side, in the order of rows."""
        for number, rows in enumerate(zip(*(p.references for p in parts), strict=True)):
            found = [r for r in rows if isinstance(r, Capturable)]
            assert len(found) == len(rows), "references that are alike can be captured"
            stacked = [torch.stack(tensors) for tensors in zip(*(r.tensors for r in found), strict=True)]
            if number == len(self.references):
                places = tuple(t.new_zeros(self.rows + 1, *t.shape[1:]) for t in stacked)
                self.references.append(replace(found[0], tensors=places))
            for place, tensors in zip(self.references[number].tensors, stacked, strict=True):
                place[: len(rows)] = tensors

    def take(self, size: int, members: Tensor, *, whole: bool) -> None:
        """Let the clients in the rows ``members`` train on their next ``size`` samples.

        :param whole: the members are the first rows in their order, which then need not be copied.
        """
        count = len(members)
        vectors = self.vectors[:count] if whole else self.vectors[members]
        velocity = self.velocity[:count] if whole else self.velocity[members]
        leaves, running = self._entries(vectors)

        def loss(images: Tensor, labels: Tensor, _: References) -> tuple[None, Tensor]:
            return None, self._losses({**leaves, **running}, images, labels, self._referred(members, images))

        def descend(gradients: Sequence[Tensor | None]) -> list[Tensor]:
            if running:
                joined = torch.cat([entry.flatten(1) for entry in running.values()], dim=1)
                vectors[:, self.model.num_trainable + self.model.gap :] = joined
            self._descend(vectors[:, : self.model.num_trainable], list(leaves.values()), gradients, velocity)
            return []

        images, labels = self._batches(size, members)
        losses = train_step(
            images, labels, loss=loss, leaves=list(leaves.values()), descend=descend, parts=ActiveParts()
        )
        with torch.no_grad():
            if not whole:
                self.vectors.index_copy_(0, members, vectors)
                self.velocity.index_copy_(0, members, velocity)
            epoch = self.cursor[members] // self.samples[members]
            entries = members * self.train.local_epochs + epoch
            self.sums.flatten(0, 1).index_add_(0, entries, losses * size)
            self.cursor.index_add_(0, members, torch.full_like(members, size))
            self.cursor[-1].zero_()

    def _batches(self, size: int, members: Tensor) -> tuple[Tensor, Tensor]:
        rows = members[:, None]
        places = self.cursor[rows] + torch.arange(size, device=members.device)
        indices = self.order[rows, places].flatten()
        planned = (t[rows, places].flatten(0, 1) for t in (self.crops, self.flips, self.brightness, self.changes))
        images = self.images.transformed(indices, *planned).contiguous()
        return images.view(-1, size, *images.shape[1:]), self.images.labels[indices].view(-1, size)

    def _referred(self, members: Tensor, images: Tensor) -> list[Referred]:
        """Return the tensors of each reference; one that goes by image sees those of all clients at once, here."""
        return [
            {k: v.unflatten(0, images.shape[:2]) for k, v in reference(images.flatten(0, 1)).items()}
            if reference.by_image and not reference.tensors
            else [t[members] for t in reference.tensors]
            for reference in self.references
        ]

    def _losses_of_one(
        self, values: dict[str, Tensor], images: Tensor, labels: Tensor, referred: list[Referred]
    ) -> Tensor:
        bound = zip(self.references, referred, strict=True)
        references: References = [
            Capturable(lambda _, own=own: own) if isinstance(own, dict) else replace(reference, tensors=tuple(own))
            for reference, own in bound
        ]
        losses: Tensor = torch.func.functional_call(self.loss, values, (images, labels, references))
        return losses

    def _entries(self, vectors: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return trained entries as leaves, and running statistics as tensors that BatchNorm may write into."""
        trained, count = self.model.num_trainable, self.model.num_entries
        names = [f"network.{name}" for name in self.model.layout]
        shapes = list(self.model.layout.values())[count:]
        views = torch.vmap(self.model.views)(vectors[:, :trained].detach())
        leaves = {n: v.requires_grad_() for n, v in zip(names, views, strict=False)}
        parts = torch.split(vectors[:, trained + self.model.gap :], [torch.Size(s).numel() for s in shapes], dim=1)
        # BatchNorm joins clients and channels to one dimension, and writes through it only where that is no copy.
        copies = [
            part.clone(memory_format=torch.contiguous_format).view(-1, *shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]
        return leaves, dict(zip(names[count:], copies, strict=True))

    def _descend(
        self, weights: Tensor, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None], velocity: Tensor
    ) -> None:
        """Take one step of SGD in each row."""
        found = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, gradients, strict=True)]
        sgd(
            weights,
            torch.vmap(as_vector)(found),
            velocity,
            lr=self.lr,
            momentum=self.train.momentum,
            weight_decay=self.train.weight_decay,
            clip=self.grad_clip,
        )

    def step_bytes(self) -> int:
        """Return what the backward pass of one client's full batch keeps, from what batches of two and three keep."""
        batch = min(self.train.batch, self.longest)
        if batch <= 3:
            return self.kept_bytes(batch)
        two, three = self.kept_bytes(2), self.kept_bytes(3)
        return two + (three - two) * (batch - 2)

    def kept_bytes(self, size: int) -> int:
        """Return what the backward pass of one client's batch keeps, by running two clients forward."""
        kept: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            kept[tensor.data_ptr()] = max(tensor.nbytes, kept.get(tensor.data_ptr(), 0))
            return tensor

        self.vectors[:] = self.model.vector
        leaves, running = self._entries(self.vectors[:2])
        members = torch.arange(2, device=self.engine.device)
        images, labels = self._batches(size, members)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self._losses({**leaves, **running}, images, labels, self._referred(members, images))
        return sum(kept.values()) // 2


class CapturedStack(Stack):
    """A stack on an NVIDIA GPU. A kind of step runs eagerly once and is captured when it comes again.

    Steps of some of the clients are captured for 1, 2, 4, 8, ... places, and the row that belongs to nobody fills
    the places left over: that adds a model, not a sample to anybody's batch.
    """

    def __init__(self, engine: BaseEngine, rows: int, longest: int, convolutions: Convolutions | None = None) -> None:
        super().__init__(engine, rows, longest, convolutions)
        self.stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.members: dict[Key, Tensor] = {}
        self.graphs: dict[Key, torch.cuda.CUDAGraph] = {}

    def take(self, size: int, members: Tensor, *, whole: bool) -> None:
        """Let some clients train on their next ``size`` samples."""
        places = len(members) if whole else padded(len(members), self.rows)
        key = (places, size, whole)
        known = key in self.members
        if not known:
            self.members[key] = torch.empty(places, dtype=torch.long, device=members.device)
        if not (known and whole):  # the first rows stay the same
            self.members[key].fill_(self.rows)
            self.members[key][: len(members)].copy_(members)
        step = partial(super().take, size, self.members[key], whole=whole)
        if not known:
            # Libraries choose their kernels and allocate their workspaces now, on the stream of the later capture.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if key not in self.graphs:
            self.graphs[key] = captured(step, self.pool, self.stream)
        self.graphs[key].replay()


def _template(network: Network, convolutions: Convolutions) -> Network:
    """Return a copy whose numbers are never read: every step hands its own in."""
    template = copy.deepcopy(network)
    for module in template.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None  # nothing reads it, and it is no client's own
        elif convolutions == "products" and type(module) is nn.Conv2d and _is_plain(module):
            module.__class__ = ProductConv
    return template


def _is_plain(conv: nn.Conv2d) -> bool:
    plain = conv.groups == 1 and conv.dilation == (1, 1) and conv.bias is None and conv.padding_mode == "zeros"
    return plain and not isinstance(conv.padding, str)
