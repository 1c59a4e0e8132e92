"""What all engines that train here share: images on the device as bytes, one resident model, clients in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedfeat.algorithm.client import EXEMPLARS, Client, IndexSets
from fedfeat.algorithm.engine import DropOut, Lost
from fedfeat.algorithm.method import Method, Op
from fedfeat.algorithm.step import Known, Seen, Work, as_it_is
from fedfeat.algorithm.tables import Tables
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError, FedfeatError
from fedfeat.core.payload import SHARED, Payload, State
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
        raise ConfigError(
            f"engine.device: {name!r} cannot be used here; choose cpu or auto ({_first(error)})"
        ) from None
    return device


class FrozenNetworks:
    """One resident network per name and task, in evaluation mode; asking again loads other weights into it."""

    def __init__(self, new_network: Callable[[], Network], scenario: Scenario) -> None:
        self.new_network, self.scenario = new_network, scenario
        self._kept: dict[tuple[str, int], FlatModel] = {}

    def __call__(self, name: str, vector: Tensor, task: int) -> Network:
        """Return the network that now holds a vector of some task."""
        model = self._kept.get((name, task))
        if model is None:
            network = self.new_network().requires_grad_(False)
            for step in range(task + 1):
                network.head.grow(self.scenario.seen_classes(step), step)
            model = FlatModel(network.requires_grad_(False))
            self._kept[name, task] = model
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
        self.train_images, self.test_images = (
            DeviceImages(
                images,
                scenario.internal_labels(labels),
                mean=dataset.mean,
                std=dataset.std,
                augmentation=dataset.augmentation,
                device=self.device,
            )
            for images, labels in (
                (dataset.train_images, dataset.train_labels),
                (dataset.test_images, dataset.test_labels),
            )
        )
        self.dataset = dataset
        self.class_names = tuple(dataset.class_names[c] for c in scenario.class_order)
        self._initial = self._build_network()
        self.network = self.new_network()
        self.model = FlatModel(self.network)
        self.states: dict[int, State] = {}
        self._indices: dict[int, tuple[Tensor, IndexSets]] = {}  # this task's, by client: made once, used every round
        self.touched: set[int] = set()  # clients whose state changed since the last checkpoint
        self.shared: Mapping[str, Tensor] = {}
        self.lost_state: set[int] = set()  # clients that lost their state: they need the shared tensors again
        self.ops: dict[str, Op] = {"train": LocalTraining(method), **method.ops()}
        self._frozen = FrozenNetworks(self.new_network, scenario)
        self.task, self.round = -1, 0
        self.secret: int | None = None  # of a client that owns its data, see Client.secret

    def begin_task(self, task: int, weights: Tensor | None = None) -> Tensor:
        """Grow the head to the task's classes and return the model's vector.

        ``weights`` is the model that the previous task ended with; its head's old rows are kept.
        """
        if weights is not None:
            self.model.load(weights)
        for step in range(self.task + 1, task + 1):
            self.network.head.grow(self.scenario.seen_classes(step), step)
        self.task, self.round = task, 0
        self._indices.clear()
        self._frozen.clear()
        self.model = FlatModel(self.network)
        return self.model.vector.clone()

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Run an op on each client in the order of ids; an op that raises ``DropOut`` loses its client."""
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

    def client(self, client_id: int) -> Client:
        """Put a client together: its indices, its state, and the resident model."""
        if client_id not in self._indices:
            own = torch.tensor(self.scenario.samples(self.task, client_id), device=self.device)
            self._indices[client_id] = own, {}
        samples, sets = self._indices[client_id]
        return Client(
            id=client_id,
            task=self.task,
            round=self.round,
            num_old=self.seen.num_old,
            num_classes=self.seen.num_classes,
            samples=samples,
            state=self.states.get(client_id, {}),
            model=self.model,
            images=self.train_images,
            seed=self.config.seed,
            settings=self.config.train,
            privacy=self.config.privacy,
            loss=self.method.loss,
            class_names=self.class_names[: self.seen.num_classes],
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
        return self._initial.twin().to(self.device)

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
            "task": self.task,
            "trained": self.model.num_trainable,
            "C": seen.num_classes,
            "N": seen.num_classes - seen.num_old,
            "d": dim,
            "triangle": dim * (dim + 1) // 2,
            "n": config.federation.most_samples if self.dataset.private else held * often,
        }

    def exemplars(self) -> int:
        """Return how many exemplars all clients keep."""
        held = (state.get(EXEMPLARS) for state in self.states.values())
        return sum(len(e) for e in held if isinstance(e, Tensor))

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
        return count(self.network, self.test_images, self.seen, self.method, known)


def _set_precision(precision: str) -> None:
    """Let matrix products use TF32 where asked for, and convolutions the same algorithm in every run."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def _changed(before: State, after: State) -> bool:
    # Ops replace entries rather than write into them, so identity tells.
    return before.keys() != after.keys() or any(after[k] is not v for k, v in before.items())


def _first(error: BaseException) -> str:
    return str(error).split("\n")[0]
