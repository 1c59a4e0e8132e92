"""The toolkit's own loop, one round at a time, on scenarios in which every client trains on equally many samples."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from torch import Tensor

from fedfeat.config import Config, make_config
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


def deal(config: Config, dataset: Dataset, per_client: list[int]) -> Scenario:
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
