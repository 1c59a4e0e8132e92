"""A rehearsal: every task of an experiment in small, before anything is written.

It is THE loop on the real engine and real images, with two rounds per task and few images per client. So a mistake in a
method shows here, also one that a run would reach after hours, and what was measured tells what the whole would take.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType

import numpy as np
import torch

from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.data import Dataset
from fedfeat.engines.base import choose_device
from fedfeat.engines.factory import make_engine
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.loop import Event, Federation
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.workload import Workload
from fedfeat.scenario import Scenario
from fedfeat.scenario.partition import Split

VALUES = {"cpu": 2**20, "cuda": 2**25}  # of the images that all clients of a rehearsed round train on in an epoch
ROUNDS = 2  # of a rehearsed task: in the first one the engine warms up
SECONDS = 60.0  # after which a rehearsal ends where it is
Alarm = Callable[[float], object]  # set for so many seconds, or called off with 0


class TimeUp(BaseException):
    """Ends a rehearsal that takes too long."""


@dataclass
class RehearsedTask:
    """What one task took in small."""

    traffic: Counter[str] = field(default_factory=Counter)
    images: int = 0  # of the measured round, each as often as it was seen
    seconds: float = 0.0  # that this round took
    end: float = 0.0  # seconds of its end, with the evaluation
    whole: bool = False


@dataclass(frozen=True)
class Rehearsal:
    """The tasks that there was time for, and what they were rehearsed with."""

    tasks: list[RehearsedTask]
    workload: Workload
    memory: int  # bytes that were in use at most


def rehearse(experiment: Experiment, seconds: float = SECONDS) -> Rehearsal:
    """Walk through the tasks of an experiment whose engine came from ``small_engine``."""
    engine, progress = experiment.engine, Progress()
    if engine.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(engine.device)
    federation = Federation(engine.config, engine.scenario, experiment.method, engine, progress)
    with warnings.catch_warnings(), _alarm() as alarm:
        warnings.simplefilter("ignore")  # of small numbers, which the run does not have
        walk = _Walk(progress, engine.config, time.monotonic() + seconds, alarm)
        with contextlib.suppress(TimeUp):
            federation.run(walk, lambda progress: False)
        walk.close()
    workload = experiment.workload(engine.config, engine.scenario)
    return Rehearsal(walk.tasks, workload, peak_bytes(engine.device))


def small_engine(config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> InProcessEngine:
    """Return the engine that the configuration asks for, on few images of each client."""
    if config.engine.name != "flower" and not dataset.private:
        kind = choose_device(config.engine.device).type
        most = max(VALUES.get(kind, VALUES["cpu"]) // math.prod(dataset.image_shape), 1)
        train = config.train.model_copy(update={"rounds": min(ROUNDS, config.train.rounds)})
        config = config.model_copy(update={"train": train})
        dataset, scenario = _fewer_tests(dataset, most), shortened(scenario, most, config.train.batch)
    return make_engine(config, dataset, scenario, method)


def shortened(scenario: Scenario, images: int, batch: int) -> Scenario:
    """Return a scenario whose rounds have about so many images; its clients keep what fits, in whole batches."""
    usual = max(scenario.participants_per_round(task) for task in range(scenario.num_tasks))
    clients = max(min(usual, images // batch), 1)
    settings = scenario.settings
    if clients < usual:
        settings = settings.model_copy(update={"participation": clients})
    each = max(images // clients // batch, 1) * batch
    return replace(scenario, settings=settings, splits=tuple(_cut(split, each) for split in scenario.splits))


def _cut(split: Split, each: int) -> Split:
    sizes = np.minimum(split.sizes, each)
    within = np.arange(len(split.indices)) - np.repeat(split.offsets[:-1], split.sizes)
    return Split.of(split.indices[within < np.repeat(sizes, split.sizes)], sizes)


def _fewer_tests(dataset: Dataset, most: int) -> Dataset:
    each = max(most // dataset.num_classes, 1)
    kept = [np.flatnonzero(dataset.test_labels == c)[:each] for c in range(dataset.num_classes)]
    chosen = np.sort(np.concatenate(kept))
    if len(chosen) == len(dataset.test_labels):
        return dataset
    return replace(
        dataset,
        test_images=dataset.test_images[chosen],
        test_labels=dataset.test_labels[chosen],
        domains=dataset.domains and dataset.domains.take(slice(None), chosen),
    )


class _Walk:
    """Listens to the loop: notes what each task takes, and ends it when time is up."""

    def __init__(self, progress: Progress, config: Config, deadline: float, alarm: Alarm) -> None:
        self.progress, self.config, self.deadline, self.alarm = progress, config, deadline, alarm
        self.tasks: list[RehearsedTask] = []
        self.before: Counter[str] = Counter()
        self.ended = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Take in a round, or the end of a task."""
        if len(self.tasks) < event["task"]:
            self.tasks.append(RehearsedTask())
        if event["event"] == "task":
            self.alarm(0.0)
            self._crossed(self.tasks[-1])
            self.tasks[-1].whole, self.tasks[-1].end = True, time.monotonic() - self.ended
            self.before = Counter(self.progress.traffic.counts)
        else:
            task = self.tasks[-1]
            task.images, task.seconds = event["samples"] * self.config.train.local_epochs, event["seconds"]
            self._crossed(task)
        self.ended = time.monotonic()
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeUp
        if event["event"] == "round" and event["round"] == self.config.train.rounds:
            self.alarm(left)

    def close(self) -> None:
        """Make up for the end of a task that there was no time for: by the one before, as far as there is one."""
        last, earlier = self.tasks[-1], (self.tasks[-2:-1] or [RehearsedTask()])[0]
        if not last.whole:
            last.end = max(time.monotonic() - self.ended, earlier.end)
            last.traffic |= Counter({e: size for e, size in earlier.traffic.items() if e.split("/")[1] != "train"})

    def _crossed(self, task: RehearsedTask) -> None:
        task.traffic = Counter(self.progress.traffic.counts)
        task.traffic.subtract(self.before)


@contextlib.contextmanager
def _alarm() -> Iterator[Alarm]:
    """Yield an alarm for what gives no sign of life between two events, the end of a task: it raises ``TimeUp``.

    Where there are no signals it does nothing.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield lambda seconds: None
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield partial(signal.setitimer, signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak_bytes(device: torch.device) -> int:
    """Return the memory that was in use at most: of a GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def memory_bytes(device: torch.device) -> int:
    """Return how much memory there is."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
