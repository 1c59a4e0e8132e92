"""The toolkit's own loop, one round at a time, on scenarios in which every client trains on equally many samples."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.config.config import Config, make_config
from fedfeat.core.errors import DataError
from fedfeat.data import Dataset, load_dataset
from fedfeat.data.dataset import Augmentation
from fedfeat.data.settings import DataSettings
from fedfeat.federation.loop import Event, Federation
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment
from fedfeat.scenario import Scenario
from fedfeat.scenario.partition import Split
from timing import Seconds

SEED = 11
BASELINE = "finetune"
NEVER_ENDING = 10**9
CIFAR_AUGMENTATION = Augmentation(crop_padding=4, flip=True, brightness=63 / 255)


class RoundDone(Exception):
    """Leaves the loop after a round."""


class Rounds:
    """``Federation.run`` itself, left after every round and taken up again: ``rounds()`` is one more round."""

    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario | None = None) -> None:
        self.experiment = Experiment(config, dataset, scenario)
        self.progress = Progress()
        self.last: Event = {}
        self.experiment.engine.begin_task(0)
        self.initial = {name: value.clone() for name, value in self.experiment.engine.model.named_values().items()}

    def named_weights(self) -> dict[str, Tensor]:
        """Return the global model's entries by name."""
        model = self.experiment.engine.model
        model.load(self.progress.weights)
        return model.named_values()

    def enter_task(self, task: int) -> None:
        """Go on with one round per task, selection included, until the first round of ``task`` is done."""
        self._run_until(self.experiment.config, task)

    def __call__(self) -> Seconds:
        """Do one round; the time is what the loop itself reports, and the processor's for the whole call."""
        config = self.experiment.config
        started = time.process_time()
        endless = config.train.model_copy(update={"rounds": NEVER_ENDING})
        self._run_until(config.model_copy(update={"train": endless}), self.progress.task + 1)
        return Seconds(self.last["seconds"], time.process_time() - started)

    def _run_until(self, config: Config, task: int) -> None:
        def emit(event: Event) -> None:
            if event["event"] == "round" and event["task"] >= task:
                self.last = event
                raise RoundDone

        e = self.experiment
        federation = Federation(config, e.scenario, e.method, e.engine, self.progress)
        try:
            federation.run(emit, lambda progress: None)
        except RoundDone:
            return
        raise AssertionError(f"the run ended before task {task}")


def settings(method: str, *, batch: int, threads: int, device: str, epochs: int, **tables: Any) -> Config:
    """Return a configuration whose learning rate stays put; ``Rounds`` decides how many rounds there are."""
    train = {"rounds": 1, "schedule": "constant", "lr": 0.01, "batch": batch, "local_epochs": epochs}
    table = {
        "method": method,
        "seed": SEED,
        "train": train,
        "engine": {"device": device, "threads": threads},
        "finetune": {"softmax": "all"},
        **tables,
    }
    return make_config(table)


def equal_parts(config: Config, dataset: Dataset, per_client: list[int]) -> Scenario:
    """Give every client ``per_client[task]`` random samples of each task; what is left over stays unused."""
    spec, rng = config.scenario, np.random.default_rng(SEED)
    classes = np.array_split(np.arange(dataset.num_classes), spec.tasks)
    splits = []
    for task, size in enumerate(per_client):
        members = rng.permutation(np.flatnonzero(np.isin(dataset.train_labels, classes[task])))
        needed = size * spec.clients
        if needed > len(members):
            raise ValueError(f"task {task + 1} has {len(members)} samples, {needed} are asked for")
        splits.append(Split.of(members[:needed], np.full(spec.clients, size)))
    return Scenario(
        class_order=tuple(range(dataset.num_classes)),
        task_classes=tuple(range(int(c[0]), int(c[-1]) + 1) for c in classes),
        settings=spec,
        seed=config.seed,
        labels=dataset.train_labels,
        present_clients=(np.arange(spec.clients),) * spec.tasks,
        splits=tuple(splits),
    )


def random_images(side: int, channels: int, count: int, augmentation: Augmentation | None = None) -> Dataset:
    """Return ``count`` images of noise in ten equally large classes."""
    rng = np.random.default_rng(SEED)
    images = rng.integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % 10
    few = (images[:20], labels[:20])
    names = tuple(f"class {c}" for c in range(10))
    level = ((0.5,) * channels, (0.29,) * channels)
    return Dataset("noise", images, labels, *few, names, *level, augmentation or Augmentation())


def cifar_images(count: int) -> tuple[Dataset, str]:
    """Return real CIFAR-10 where FEDFEAT_DATA leads to it, noise of its shape otherwise; and which it is."""
    if os.environ.get("FEDFEAT_DATA"):
        try:
            return load_dataset(DataSettings(name="cifar10")), "CIFAR-10"
        except DataError:
            pass
    return random_images(32, 3, count, CIFAR_AUGMENTATION), "noise of CIFAR's shape"


@dataclass(frozen=True)
class Size:
    """How much work one round is, and how often it is repeated."""

    name: str
    dataset: Dataset
    data: str
    clients: int
    samples: int  # per client and round
    exemplars: int  # per client and finished task, where there is replay
    batch: int
    epochs: int
    threads: int
    device: str
    repetitions: int

    def rounds(self, method: str, tasks: int, task: int = 1) -> Rounds:
        """Return a federation in which every client trains on ``samples`` samples, exemplars included."""
        kept = 0 if method == BASELINE else self.exemplars
        scenario = {
            "tasks": tasks,
            "clients": self.clients,
            "budget": kept,
            "budget_scope": "per_client_per_task",
            "class_order": "natural",
        }
        config = settings(
            method,
            batch=self.batch,
            threads=self.threads,
            device=self.device,
            epochs=self.epochs,
            scenario=scenario,
        )
        sizes = [self.samples - kept * t for t in range(tasks)]
        rounds = Rounds(config, self.dataset, equal_parts(config, self.dataset, sizes))
        if task > 1:
            rounds.enter_task(task)
        return rounds

    def describe(self) -> dict[str, Any]:
        """Return the numbers behind a measurement."""
        hidden = ("dataset",)
        return {k: v for k, v in vars(self).items() if k not in hidden}


def small(device: str, quick: bool) -> Size:
    """The small CNN on the built-in digits."""
    data = load_dataset(DataSettings(name="digits"))
    if quick:
        return Size("small CNN", data, "digits", 2, 64, 4, 32, 1, 1, device, 2)
    return Size("small CNN", data, "digits", 5, 256, 16, 32, 2, 1, device, 25)


def small_noise(device: str, quick: bool) -> Size:
    """The small CNN on noise of the digits' shape: as many samples as equal tasks need."""
    data = random_images(8, 1, 2_000 if quick else 20_000)
    if quick:
        return Size("small CNN", data, "noise", 2, 64, 4, 32, 1, 1, device, 2)
    return Size("small CNN", data, "noise", 5, 256, 16, 32, 2, 1, device, 25)


def resnet(device: str, quick: bool) -> Size:
    """ResNet-18 on images of CIFAR's shape, as much of it as the device does in seconds."""
    data, called = cifar_images(1_000 if quick else 8_000)
    threads = torch.get_num_threads()
    if quick:
        return Size("ResNet-18", data, called, 1, 4, 1, 4, 1, 1, device, 1)
    if device == "cpu":
        return Size("ResNet-18", data, called, 2, 128, 4, 128, 1, threads, device, 5)
    return Size("ResNet-18", data, called, 2, 768, 24, 128, 2, threads, device, 15)
