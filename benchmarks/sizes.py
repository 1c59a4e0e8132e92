"""How much work is measured: data set, clients, samples and repetitions, for each model and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedfeat.data import Dataset, load_dataset
from fedfeat.data.settings import DataSettings
from rounds import Rounds, cifar_images, deal, random_images, settings

BASELINE = "finetune"


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
        rounds = Rounds(config, self.dataset, deal(config, self.dataset, sizes))
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
