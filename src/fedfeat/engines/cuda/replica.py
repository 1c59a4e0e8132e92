"""One copy of the model on its own stream, with the steps captured on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import ActiveParts, ReferenceFunction
from fedfeat.algorithm.step import Objective, Work
from fedfeat.data.augment import change_columns
from fedfeat.engines.base import BaseEngine, FrozenNetworks
from fedfeat.engines.cuda.arithmetic import Backbone, Plain, Transform, backbone_of, fused_sgd
from fedfeat.engines.cuda.capture import put_back, warmed_up
from fedfeat.engines.cuda.folded import FoldedNetworks, fold
from fedfeat.engines.cuda.look_ahead import BATCHES, LookAhead, goes_by_image
from fedfeat.federation.training import Descent, clip_norm, train_step
from fedfeat.models import FlatModel, Network
from fedfeat.models.network import Outputs

Kind = tuple[object, ...]


class Replica:
    """One copy of the model on its own stream, with its captured steps and the buffers they read."""

    def __init__(self, engine: BaseEngine, arithmetic: Plain, network: Network, capacity: int, priority: int) -> None:
        self.method, self.train, self.arithmetic = engine.method, engine.config.train, arithmetic
        self.images = engine.train_images
        self.stream = torch.cuda.Stream(engine.device, priority=priority)  # type: ignore[no-untyped-call]
        self.network = network
        frozen = FrozenNetworks(lambda: fold(arithmetic.prepare(engine.new_network())), engine.scenario)
        self.frozen = FoldedNetworks(frozen)
        self.seen = engine.seen
        self.terms = engine.method.active_terms(engine.task)
        self.model = FlatModel(network)
        self.velocity = torch.zeros_like(self.model.weights)
        self.half, self.leaves = self._differentiated()
        self.layerwise_sgd = arithmetic.sgd(self.model)
        device = engine.device
        self.lr = torch.zeros((), device=device)
        self.cursor = torch.zeros((), dtype=torch.long, device=device)
        # Until a client's plan is loaded, point at a sample of the current task: capturing runs on it.
        valid = int(engine.scenario.splits[engine.task].indices[0])
        self.order = torch.full((capacity,), valid, dtype=torch.long, device=device)
        self.crops = torch.zeros(capacity, 2, dtype=torch.long, device=device)
        self.flips = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.brightness = torch.ones(capacity, device=device)
        columns = change_columns(self.images.augmentation, self.train.paste)
        self.changes = torch.zeros(capacity, columns, device=device)
        widest = len(self.terms) + len(engine.method.penalties)
        self.sums = torch.zeros(self.train.local_epochs, widest, device=device)
        self.epoch = torch.zeros((), dtype=torch.long, device=device)
        self.to_encode = torch.zeros(self.train.batch, dtype=torch.long, device=device)
        self.pool = torch.cuda.graph_pool_handle()
        self.parts: dict[Kind, ActiveParts] = {}
        self.graphs: dict[tuple[int, Kind], torch.cuda.CUDAGraph] = {}
        self.looks: dict[Kind, LookAhead | None] = {}
        self.encoder: tuple[torch.cuda.CUDAGraph, Tensor] | None = None
        self.ahead: tuple[Tensor, int, Tensor] | None = None  # indices, which model, and their features under it

    def _differentiated(self) -> tuple[Tensor | None, list[Tensor]]:
        """Return what gradients are taken of, in the order of the vector.

        In bf16 the backbone's convolutions see a rounded copy of their weights, made once per step for all of them;
        autocast would make it layer by layer, and turn each gradient back.
        """
        method = self.method
        if self.network.autocast is None or method.wants_intermediate or method.trains_on_references:
            return None, list(self.model.parameters)
        half = self.model.weights.to(self.network.autocast)
        names = list(self.model.layout)[: self.model.num_entries]
        leaves: list[Tensor] = []
        for name, parameter, view in zip(names, self.model.parameters, self.model.views(half), strict=True):
            rounded = parameter.dim() == 4 and name.startswith("backbone.")
            leaves.append(view.detach().requires_grad_() if rounded else parameter)
        return half, leaves

    def load(self, weights: Tensor) -> None:
        """Take up a model and start its optimiser anew."""
        self.model.load(weights)
        self.velocity.zero_()
        if self.half is not None:
            self.half.copy_(self.model.weights)

    def step(
        self, size: int, parts: ActiveParts, look: LookAhead | None, backbone: Backbone, transform: Transform
    ) -> None:
        """Train on the next ``size`` samples of the epoch; this is what gets captured."""
        rows = self.cursor + torch.arange(size, device=self.cursor.device)
        indices = self.order[rows]
        if look is not None:
            others = (r for r in parts.references if not goes_by_image(r))
            parts = replace(parts, references=(lambda _: look.read(rows), *others))
        values = train_step(
            self._augmented(rows, indices, transform),
            self.images.labels[indices],
            loss=self._objective(backbone),
            leaves=self.leaves,
            descend=self._descent(parts),
            parts=parts,
        )
        with torch.no_grad():
            self.sums[:, : len(values)].index_add_(0, self.epoch.view(1), (values * size)[None])
            self.cursor += size

    def _augmented(self, rows: Tensor, indices: Tensor, transform: Transform) -> Tensor:
        """Return the images of some indices, augmented as planned for their rows."""
        planned = [self.crops[rows], self.flips[rows], self.brightness[rows]]
        if self.changes.shape[1]:
            planned.append(self.changes[rows])
        return transform(indices, *planned)

    def _objective(self, backbone: Backbone) -> Objective:
        """Return the loss of a batch, with the backbone as a function of the leaves."""
        network = self.network

        def forward(images: Tensor) -> tuple[Outputs, tuple[Tensor, ...]]:
            with network.reduced_precision(images):
                pooled = backbone(self._backbone_leaves(), images)
            features = network.head.feature(pooled.float())
            return Outputs(features, network.head(features)), ()

        wants_intermediate = self.method.wants_intermediate
        return Objective(network, self.seen, self.terms, wants_intermediate, forward, self.arithmetic.loss)

    def _backbone_leaves(self) -> dict[str, Tensor]:
        names = list(self.model.layout)[: self.model.num_entries]
        found = zip(names, self.leaves, strict=True)
        return {name.removeprefix("backbone."): leaf for name, leaf in found if name.startswith("backbone.")}

    def _descent(self, parts: ActiveParts) -> Descent:
        """Return one step of SGD: in one kernel straight from the layers' gradients, if nothing else wants them."""
        momentum, decay, clip = self.train.momentum, self.train.weight_decay, self.method.grad_clip
        weights, gradient = self.model.weights, self.model.gradient

        def descend(gradients: Sequence[Tensor | None]) -> list[Tensor]:
            if self.layerwise_sgd is not None and clip is None and not parts.changes_gradient:
                self.layerwise_sgd(
                    gradients, weights, self.velocity, self.half, self.lr, momentum=momentum, decay=decay
                )
                return []
            self.model.gather(gradients)
            penalties = parts.penalise(weights, gradient)
            clip_norm(gradient, clip)
            fused_sgd(weights, gradient, self.velocity, self.lr, momentum=momentum, decay=decay)
            if self.half is not None:
                self.half.copy_(weights)
            return penalties

        return descend

    def bind(self, parts: ActiveParts) -> Kind:
        """Copy a local update's tensors to where the captured steps of its kind read them."""
        kind = parts.kind
        if kind not in self.parts:
            self.parts[kind] = parts.copied()
        for ours, theirs in zip(self.parts[kind].tensors, parts.tensors, strict=True):
            ours.copy_(theirs)
        return kind

    def graph(self, size: int, kind: Kind) -> torch.cuda.CUDAGraph:
        """Return the captured step for a batch size, capturing it on first use; what it trains is put back."""
        if (size, kind) not in self.graphs:
            backbone = self.arithmetic.forward(self.network, size)
            transform = self.arithmetic.transform(size, self.changes.shape[1])
            look = self.look_ahead(kind)
            self.network.train()
            parts = self.parts[kind]
            touched = [self.model.vector, self.velocity, self.sums, self.cursor, *parts.tensors]
            touched += [] if self.half is None else [self.half]
            with torch.cuda.stream(self.stream), put_back(touched):
                self.cursor.zero_()  # of whatever update was here before
                name = " ".join(["step", *(term.name for term in self.terms)])
                self.graphs[size, kind] = self._capture(lambda: self.step(size, parts, look, backbone, transform), name)
        return self.graphs[size, kind]

    def look_ahead(self, kind: Kind) -> LookAhead | None:
        """Return what calls references ahead of the steps of a kind, captured on first use; None without such."""
        if kind not in self.looks:
            references = [r for r in self.parts[kind].references if goes_by_image(r)]
            self.looks[kind] = self._captured_look(references) if references else None
        return self.looks[kind]

    def _captured_look(self, references: Sequence[ReferenceFunction]) -> LookAhead:
        transform = self.arithmetic.transform(BATCHES * self.train.batch, self.changes.shape[1])

        def images_of(rows: Tensor) -> Tensor:
            return self._augmented(rows, self.order[rows], transform)

        look = LookAhead(references, images_of, self.train.batch, self.cursor.device)
        with torch.cuda.stream(self.stream):
            look.capture(self._capture)
        return look

    def encode_ahead(self, indices: Tensor) -> None:
        """Launch the encoding of what will be asked for next; another model that is loaded first makes it void."""
        features = self.encode(indices)
        self.ahead = indices, self.model.vector._version, features

    def encode(self, indices: Tensor) -> Tensor:
        """Return features in evaluation mode; padding is exact there, so one captured size serves all."""
        ready, self.ahead = self.ahead, None
        if ready is not None and ready[0] is indices and ready[1] == self.model.vector._version:
            return ready[2]
        if self.half is not None:
            self.half.copy_(self.model.weights)  # whoever borrowed the model may have loaded another
        if self.encoder is None:
            self.network.eval()
            backbone = backbone_of(self.network)
            out: list[Tensor] = []

            def run() -> None:
                images = self.images.plain(self.to_encode)
                with self.network.reduced_precision(images):
                    pooled = backbone(self._backbone_leaves(), images)
                out[:] = [self.network.head.feature(pooled.float())]

            with torch.no_grad():
                self.encoder = (self._capture(run, "encode"), out[0])
        graph, features = self.encoder
        parts = []
        for part in torch.split(indices, len(self.to_encode)):
            self.to_encode[: len(part)].copy_(part)
            graph.replay()
            parts.append(features[: len(part)].clone())
        return torch.cat(parts)

    def lent_to(self, client: Client) -> Client:
        """Return the client with this copy of the model, and with what is captured on it."""
        return replace(client, model=self.model, encode=self.encode, repeat=self.repeat)

    def repeat(self, work: Work, touched: Sequence[Tensor]) -> Work:
        """Return work on fixed tensors as a replay; what capturing does to those it touches is undone."""
        with put_back(touched):
            return self._capture(work).replay

    def _capture(self, work: Work, name: str | None = None) -> torch.cuda.CUDAGraph:
        """Return the captured work; what has a name is of a kind whose kernels are compiled side by side."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if name is not None:
                self.arithmetic.compile(name, work)
        graph = warmed_up(work, self.pool, self.stream)
        if self.layerwise_sgd is not None:
            self.layerwise_sgd.settle()
        torch.cuda.synchronize()
        return graph
