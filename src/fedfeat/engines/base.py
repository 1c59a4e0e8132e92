"""What all engines that train here share: images as bytes, one resident model, clients in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfeat.algorithm.client import EXEMPLARS, Client, IndexSets
from fedfeat.algorithm.engine import DropOut, Lost
from fedfeat.algorithm.method import Method, Op
from fedfeat.algorithm.step import Known, Seen, Work, as_it_is
from fedfeat.algorithm.tables import Tables
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError, FedfeatError
from fedfeat.core.payload import SHARED, Payload, State, number_of
from fedfeat.data.augment import DeviceImages
from fedfeat.data.dataset import Dataset
from fedfeat.federation.evaluation import count
from fedfeat.federation.training import LocalTraining
from fedfeat.models import FlatModel, Network, PixelScale, build_network
from fedfeat.scenario import Scenario


def choose_device(name: str) -> torch.device:
    """Turn ``engine.device`` into a device that is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"engine.device: {name!r} cannot be used here; choose cpu or auto ({reason})") from None
    return device


ROOM = 0.5  # share of a GPU's free memory that images may take


def frozen_model(network: Network, scenario: Scenario, task: int) -> FlatModel:
    """Return an initial network, grown to the classes of a task, as a model that nobody trains."""
    network.requires_grad_(False)
    for step in range(task + 1):
        network.head.grow(scenario.seen_classes(step), step)
    return FlatModel(network.requires_grad_(False))


class FrozenNetworks:
    """One resident network per name and task, in evaluation mode; asking again loads other weights into it."""

    def __init__(self, new_network: Callable[[], Network], scenario: Scenario) -> None:
        self.new_network, self.scenario = new_network, scenario
        self._kept: dict[tuple[str, int], FlatModel] = {}

    def __call__(self, name: str, vector: Tensor, task: int) -> Network:
        """Return the network that now holds a vector of some task."""
        model = self._kept.get((name, task))
        if model is None:
            model = self._kept[name, task] = frozen_model(self.new_network(), self.scenario, task)
        model.load(vector)
        return model.network.eval()

    def clear(self) -> None:
        """Let all of them go."""
        self._kept.clear()


class BaseEngine:
    """Runs clients one after another on one device; a client that is not asked costs nothing."""

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> None:
        if config.engine.threads:
            torch.set_num_threads(config.engine.threads)
        self.config, self.scenario, self.method = config, scenario, method
        self.device = choose_device(config.engine.device)
        _set_precision(config.engine.precision)
        fed = not self.has_room(dataset)
        self.train_images, self.test_images = (
            DeviceImages(
                images,
                scenario.internal_labels(labels),
                mean=dataset.mean,
                std=dataset.std,
                augmentation=dataset.augmentation,
                device=self.device,
                fed=fed,
            )
            for images, labels in (
                (dataset.train_images, dataset.train_labels),
                (dataset.test_images, dataset.test_labels),
            )
        )
        self.dataset = dataset
        self.test_domains = None  # of the test images, where tasks bring domains
        if scenario.settings.brings == "domains" and dataset.domains is not None:
            self.test_domains = torch.from_numpy(dataset.domains.test).to(self.device)
        self.class_names = tuple(dataset.class_names[c] for c in scenario.class_order)
        self._initial = self._build_network().to(self.device)
        self.network = self.new_network()
        self.model = FlatModel(self.network)
        self.states: dict[int, State] = {}
        self._indices: dict[int, tuple[Tensor, IndexSets]] = {}  # this task's, by client: made once, used every round
        self.touched: set[int] = set()  # clients whose state changed since the last checkpoint
        self.shared: Mapping[str, Tensor] = {}
        self.deferred: dict[str, NDArray[np.int32]] | None = None  # a client of its own process chooses at once
        self.lost_state: set[int] = set()  # clients that lost their state: they need the shared tensors again
        self.ops: dict[str, Op] = {"train": LocalTraining(method), **method.ops()}
        by_address = (op for step in method.task_end_steps() if getattr(step, "by_address", False) for op in step.ops())
        self.can_wait = {op: self.ops[op] for op in by_address}
        self._frozen = FrozenNetworks(self.new_network, scenario)
        self.task, self.round = -1, 0
        self.secret: int | None = None  # of a client that owns its data, see Client.secret

    def has_room(self, dataset: Dataset) -> bool:
        """Return whether the device can keep all images; otherwise they are fed to it batch by batch."""
        return self.device.type != "cuda" or image_bytes(dataset) <= ROOM * torch.cuda.mem_get_info(self.device)[0]

    def begin_task(self, task: int, weights: Tensor | None = None) -> Tensor:
        """Grow the head to the task's classes and return the model's vector; clients that left take their state along.

        ``weights`` is the model that the previous task ended with; its head's old rows are kept.
        """
        if weights is not None:
            self.model.load(weights)
        for step in range(self.task + 1, task + 1):
            self.network.head.grow(self.scenario.seen_classes(step), step)
        self.task, self.round = task, 0
        for client in self.scenario.gone(task):
            self.states.pop(int(client), None)
            for quotas in (self.deferred or {}).values():
                quotas[client] = 0
            self.touched.discard(int(client))
        self._indices.clear()
        self._frozen.clear()
        self.model = FlatModel(self.network)
        return self.model.vector.clone()

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Run an op on each client in the order of ids; an op that raises ``DropOut`` loses its client."""
        # An op that somebody wrapped, say to let clients drop out, has to be called.
        if self.deferred is not None and self.can_wait.get(op) is self.ops[op]:
            yield from self._defer(op, requests)
            return
        for client_id in sorted(requests):
            client = self.client(client_id)
            request = {k: v for k, v in requests[client_id].items() if not k.startswith(SHARED)}
            before = dict(client.state)
            try:
                reply = self.ops[op](client, request)
            except DropOut as drop_out:
                if client_id in self.states:
                    self.states[client_id] = before
                yield client_id, drop_out.lost
                continue
            except FedfeatError:
                raise
            except Exception as error:
                error.add_note(f"while client {client_id} ran {op!r} in task {self.task + 1}, round {self.round + 1}")
                raise
            self.note_state(client_id, before, client.state)
            yield client_id, reply

    def note_state(self, client_id: int, before: State, after: State) -> None:
        """Keep a client's state if something in it is another one now."""
        if _changed(before, after):
            self.states[client_id] = after
            self.touched.add(client_id)

    def _defer(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Note what each client is to choose when it takes part again; draws have addresses, so it will be the same."""
        assert self.deferred is not None
        nothing = np.zeros(self.scenario.num_clients, dtype=np.int32)
        quotas = self.deferred.setdefault(f"{self.task:04d}/{op}", nothing)
        for client_id, request in requests.items():
            quotas[client_id] = number_of(request, "quota")
        yield from ((client_id, {}) for client_id in sorted(requests))

    def settle(self, client_id: int) -> None:
        """Let a client make the choices that it was asked for since it last took part."""
        for name, quotas in (self.deferred or {}).items():
            if quota := int(quotas[client_id]):
                task, op = int(name[:4]), name[5:]
                client = self._client(client_id, task, self._samples(task, client_id), {})
                self.ops[op](client, {"quota": quota})
                self.states[client_id] = client.state
                self.touched.add(client_id)
                quotas[client_id] = 0

    def client(self, client_id: int) -> Client:
        """Put a client together: its indices, its state, and the resident model."""
        self.settle(client_id)
        if client_id not in self._indices:
            self._indices[client_id] = self._samples(self.task, client_id), {}
        return self._client(client_id, self.task, *self._indices[client_id])

    def _samples(self, task: int, client_id: int) -> Tensor:
        return torch.tensor(self.scenario.samples(task, client_id), device=self.device)

    def _client(self, client_id: int, task: int, samples: Tensor, sets: IndexSets) -> Client:
        seen = Seen(task, self.scenario.old_classes(task), self.scenario.seen_classes(task))
        return Client(
            id=client_id,
            task=task,
            round=self.round,
            num_old=self.scenario.own_old_classes(task, client_id),
            num_classes=seen.num_classes,
            global_seen=seen,
            samples=samples,
            state=self.states.get(client_id, {}),
            model=self.model,
            images=self.train_images,
            seed=self.config.seed,
            settings=self.config.train,
            privacy=self.config.privacy,
            loss=self.method.loss,
            class_names=self.class_names[: seen.num_classes],
            shared=self.shared,
            encode=None,
            frozen=self.frozen,
            held_out_share=self.method.held_out,
            redraws_held_out=self.method.redraws_held_out,
            secret=self.secret,
            sets=sets,
        )

    def repeat(self, work: Work, touched: Sequence[Tensor]) -> Work:
        """Return the server's work on fixed tensors as it is."""
        return as_it_is(work, touched)

    def frozen(self, name: str, vector: Tensor, task: int) -> Network:
        """Return a network that holds a vector of some task, in evaluation mode; one is kept per name."""
        return self._frozen(name, vector, task)

    def new_network(self) -> Network:
        """Return another copy of the initial model, on the device."""
        return self._initial.twin()

    def _build_network(self) -> Network:
        network = build_network(
            self.config.model,
            self.dataset.image_shape,
            self.method.head,
            seed=self.config.seed,
            num_classes=self.dataset.num_classes,
            extras=self.method.extras,
            pixels=PixelScale(self.dataset.mean, self.dataset.std),
        )
        network.autocast = torch.bfloat16 if self.config.engine.precision == "bf16" else None
        return network

    @property
    def seen(self) -> Seen:
        """Where the stream of classes stands."""
        return Seen(self.task, self.scenario.old_classes(self.task), self.scenario.seen_classes(self.task))

    def reply_sizes(self, client: int) -> dict[str, int]:
        """Return what a server knows of the sizes in a client's reply, and ``n``, the most samples that it may count.

        Of a data set that all share that is what the partition gave the client so far and what it may keep, as often
        as it is trained on. Of a client's own images nobody else knows how many there are.
        """
        seen, config, dim = self.seen, self.config, self.network.backbone.feature_dim
        held = sum(len(self.scenario.samples(task, client)) + config.scenario.budget for task in range(self.task + 1))
        often = config.train.repeat_exemplars * config.train.local_epochs
        return {
            **self.method.sizes,
            "task": self.task if seen.num_old else 0,  # entries come from a task on because they are of old classes
            "trained": self.model.num_trainable,
            "C": seen.num_classes,
            "N": seen.num_classes - seen.num_old,
            "d": dim,
            "triangle": dim * (dim + 1) // 2,
            "n": config.federation.most_samples if self.dataset.private else held * often,
        }

    def exemplars(self) -> int:
        """Return how many exemplars all clients keep."""
        return int(self._held().sum())

    def largest_local_set(self) -> int:
        """Return the most samples that a client of this task trains on in an epoch, at least one."""
        own = self.scenario.splits[self.task].sizes + self.config.train.repeat_exemplars * self._held()
        return int(own[self.scenario.present(self.task)].max(initial=1))

    def _held(self) -> NDArray[np.int64]:
        """Return how many exemplars each registered client keeps, those that it has yet to choose included."""
        held = np.zeros(self.scenario.num_clients, dtype=np.int64)
        for client_id, state in self.states.items():
            kept = state.get(EXEMPLARS)
            held[client_id] = len(kept) if isinstance(kept, Tensor) else 0
        for name, quotas in (self.deferred or {}).items():
            held += np.minimum(quotas, self.scenario.splits[int(name[:4])].sizes)
        return held

    def account(self) -> dict[str, Any]:
        """Return what a round's event should say about the way its clients were run."""
        return {}

    def restore(self, states: Mapping[int, State]) -> None:
        """Take up clients' states from a checkpoint."""
        self.states = {
            k: {n: v.to(self.device) if isinstance(v, Tensor) and n == EXEMPLARS else v for n, v in s.items()}
            for k, s in states.items()
        }

    def evaluate(self, weights: Tensor, known: Known) -> Tables:
        """Count right and wrong predictions of the global model on the test images of all seen classes."""
        self.model.load(weights)
        return count(self.network, self.test_images, self.seen, self.method, known, domains=self.test_domains)


def image_bytes(dataset: Dataset) -> int:
    """Return what all images of a data set take."""
    return dataset.train_images.nbytes + dataset.test_images.nbytes


def _set_precision(precision: str) -> None:
    """Let matrix products use TF32 where asked for, and convolutions the same algorithm in every run."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def _changed(before: State, after: State) -> bool:
    # Ops replace entries rather than write into them, so identity tells.
    return before.keys() != after.keys() or any(after[k] is not v for k, v in before.items())
