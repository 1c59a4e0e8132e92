"""Several models of one layout, trained in one step: the vectors of clients are the rows of a matrix.

``torch.func.vmap`` turns the network and the loss terms, written for one client, into functions of the whole stack: a
convolution becomes a grouped one, and BatchNorm sees each client's batch by itself. The clients' losses do not depend
on each other's weights, so the gradient of their sum holds the gradient of each.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.step import LossTerm, Seen, Step
from fedfeat.models import Network, as_vector

if TYPE_CHECKING:
    from fedfeat.engines.inprocess import InProcessEngine

Convolutions = Literal["grouped", "products"]


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


class StepLosses(nn.Module):
    """A network and the loss terms of a task as one function: a batch goes in, weighted losses [terms] come out."""

    def __init__(self, network: Network, terms: tuple[LossTerm, ...], seen: Seen, *, intermediate: bool) -> None:
        super().__init__()
        self.network, self.terms, self.seen, self.intermediate = network, terms, seen, intermediate

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Run the batch of one client."""
        intermediate: tuple[Tensor, ...] = ()
        if self.intermediate:
            outputs, intermediate = self.network.with_intermediate(images)
        else:
            outputs = self.network(images)
        frame = self.network.head.num_prototypes
        step = Step(*outputs, labels, self.seen.num_old, self.seen.num_classes, frame, {}, intermediate, self.network)
        return torch.stack([term.weight * term.function(step) for term in self.terms])


class Stack:
    """Models, velocities, draws and losses of up to ``rows`` clients, and the step that moves some of them on.

    One row more than asked for belongs to nobody: a captured step of fewer clients than it has places fills them
    with it.
    """

    def __init__(
        self, engine: InProcessEngine, rows: int, longest: int, convolutions: Convolutions | None = None
    ) -> None:
        self.engine, self.rows, self.longest = engine, rows, longest
        self.model, self.images = engine.model, engine.train_images
        self.train, self.grad_clip = engine.config.train, engine.method.grad_clip
        terms = engine.method.active_terms(engine.task)
        network = _template(engine.network, convolutions or _usual(engine.device))
        self.losses = StepLosses(network, terms, engine.seen, intermediate=engine.method.wants_intermediate).train()
        self._together = torch.vmap(self._of_one, randomness="same")
        size, device = rows + 1, engine.device
        self.vectors = torch.zeros(size, len(self.model.vector), device=device)
        self.velocity = torch.zeros(size, self.model.num_trainable, device=device)
        self.lr = torch.zeros((), device=device)
        # Rows without draws point at a sample of the current task, which the head knows.
        valid = int(engine.scenario.splits[engine.task].indices[0])
        self.order = torch.full((size, longest), valid, device=device)
        self.crops = torch.zeros(size, longest, 2, dtype=torch.long, device=device)
        self.flips = torch.zeros(size, longest, dtype=torch.bool, device=device)
        self.brightness = torch.ones(size, longest, device=device)
        self.samples = torch.ones(size, dtype=torch.long, device=device)
        self.cursor = torch.zeros(size, dtype=torch.long, device=device)
        self.sums = torch.zeros(size, self.train.local_epochs, len(terms), device=device)
        self.places = torch.arange(size, device=device)

    def take(self, size: int, members: Tensor) -> None:
        """Let the clients in the rows ``members`` train on their next ``size`` samples."""
        self.step(size, members, whole=False)

    def take_all(self, size: int, count: int) -> None:
        """Let the clients in the first ``count`` rows train on their next ``size`` samples."""
        self.step(size, self.places[:count], whole=True)

    def step(self, size: int, members: Tensor, *, whole: bool) -> None:
        """Do one step; ``whole`` says that the members are the first rows, which then need not be copied."""
        count = len(members)
        vectors = self.vectors[:count] if whole else self.vectors[members]
        velocity = self.velocity[:count] if whole else self.velocity[members]
        losses, gradient = self._differentiate(vectors, *self._batches(size, members))
        with torch.no_grad():
            self._descend(vectors[:, : self.model.num_trainable], gradient, velocity)
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
        visited = self.cursor[rows] + torch.arange(size, device=members.device)
        indices = self.order[rows, visited].flatten()
        draws = (t[rows, visited].flatten(0, 1) for t in (self.crops, self.flips, self.brightness))
        images = self.images.transformed(indices, *draws).contiguous()
        return images.view(-1, size, *images.shape[1:]), self.images.labels[indices].view(-1, size)

    def _differentiate(self, vectors: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses [clients, terms] and gradients [clients, trained numbers]; running statistics move on."""
        leaves, running = self._entries(vectors)
        losses = self._together({**leaves, **running}, images, labels)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves.values(), found, strict=True)]
        with torch.no_grad():
            if running:
                vectors[:, self.model.num_trainable + self.model.gap :] = _joined(list(running.values()))
            return losses.detach(), torch.vmap(as_vector)(gradients)

    def _of_one(self, values: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        losses: Tensor = torch.func.functional_call(self.losses, values, (images, labels))
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

    def _descend(self, weights: Tensor, gradient: Tensor, velocity: Tensor) -> None:
        """Apply SGD with momentum as ``federation.local.FlatSGD`` does, to each row."""
        if self.grad_clip is not None:
            norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            gradient.mul_((self.grad_clip / (norms + 1e-6)).clamp(max=1.0))
        gradient.add_(weights, alpha=self.train.weight_decay)
        velocity.mul_(self.train.momentum).add_(gradient)
        weights.addcmul_(velocity, self.lr, value=-1.0)

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
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self._together({**leaves, **running}, *self._batches(size, self.places[:2]))
        return sum(kept.values()) // 2


def _joined(entries: list[Tensor]) -> Tensor:
    return torch.cat([e.flatten(1) for e in entries], dim=1)


def _usual(device: torch.device) -> Convolutions:
    return "products" if device.type == "cuda" else "grouped"


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
