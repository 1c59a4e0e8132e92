"""A method on the toy problem: how the checks of the contract run it, whole or interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config, make_config
from fedfeat.config.plugins import forget
from fedfeat.core.settings import merge
from fedfeat.data import Dataset, load_dataset
from fedfeat.engines.factory import EngineFactory, make_engine
from fedfeat.federation.loop import Event, Listener
from fedfeat.federation.progress import Progress
from fedfeat.runs.contract.observed import Observed
from fedfeat.runs.contract.problem import ROUNDS, toy_table, write_toy
from fedfeat.runs.contract.source import Source
from fedfeat.runs.experiment import Experiment, Result
from fedfeat.runs.folder import RunFolder
from fedfeat.scenario import Scenario

Changes = Mapping[str, Any]  # tables of the configuration that differ from the toy problem's
NONE: Changes = {}
TIMED = ("seconds", "images_per_second")  # what differs between two runs of the same


class Interrupted(Exception):
    """A run that was stopped on purpose."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: Experiment
    progress: Progress
    result: Result
    folder: Path

    @property
    def history(self) -> list[Event]:
        """All events without times."""
        return history(self.folder)


@dataclass
class Trial:
    """A method to be checked, and a folder for its runs.

    :param tables: settings on top of those of the toy problem.
    :param files: the author's files, in which faults are looked for; by default those of all parts.
    """

    method: str
    folder: Path
    plugins: Sequence[Path] = ()
    overrides: Sequence[str] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()
    _runs: int = 0

    def config(self, changes: Changes = NONE) -> Config:
        """Return the experiment; the author's files are read as a new process would read them."""
        forget()
        table = toy_table(**{"method": self.method, **changes})
        table["plugins"] = [str(path.absolute()) for path in self.plugins]
        table["data"] = {**table["data"], "path": str(self.data), "augment": "crop-flip"}
        return make_config(merge(table, self.tables), self.overrides)

    @cached_property
    def data(self) -> Path:
        """The toy problem as a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return write_toy(self.folder / "toy.npz")

    @cached_property
    def dataset(self) -> Dataset:
        """The toy problem in memory."""
        config = self.config()
        return load_dataset(config.data, seed=config.seed)

    @cached_property
    def source(self) -> Source:
        """The author's files."""
        return Source(tuple(path.absolute() for path in self.files)) if self.files else Source.of_method(self.method)

    @cached_property
    def built(self) -> Method:
        """The method."""
        return self.config().build_method()

    @property
    def rounds(self) -> int:
        """Rounds of a task: none for a method that does not train."""
        return self.built.rounds(ROUNDS)

    @cached_property
    def observed(self) -> tuple[Observed, Run]:
        """One whole run in process, and all that clients looked at and sent in it."""
        with seeded(0):
            experiment = self.experiment()
            observed = Observed(experiment)
            return observed, self.finish(experiment)

    @property
    def reference(self) -> Run:
        """The same run, with which others are compared."""
        return self.observed[1]

    @cached_property
    def second(self) -> Run:
        """The same again, with other seeds for generators that nobody should use."""
        return self.run(global_seed=1)

    def experiment(
        self, changes: Changes = NONE, *, factory: EngineFactory = make_engine, scenario: Scenario | None = None
    ) -> Experiment:
        """Put an experiment together, with an engine and a partition of one's own if need be."""
        return Experiment(self.config(changes), self.dataset, scenario, factory)

    def finish(self, experiment: Experiment, listeners: tuple[Listener, ...] = ()) -> Run:
        """Run an experiment in a folder of its own."""
        folder, progress = self.new_folder(), Progress()
        result = experiment.run(RunFolder.create(folder, experiment.config, {}), progress, listeners)
        return Run(experiment, progress, result, folder)

    def run(
        self,
        changes: Changes = NONE,
        *,
        factory: EngineFactory = make_engine,
        scenario: Scenario | None = None,
        global_seed: int = 0,
    ) -> Run:
        """Run the method from beginning to end; ``global_seed`` is for generators that it should not use."""
        with seeded(global_seed):
            return self.finish(self.experiment(changes, factory=factory, scenario=scenario))

    def new_folder(self) -> Path:
        """Return a folder that no run has used."""
        self._runs += 1
        return self.folder / f"run{self._runs}"


def history(folder: Path) -> list[Event]:
    """Return the events of a run without times."""
    return [{k: v for k, v in event.items() if k not in TIMED} for event in RunFolder.open(folder).events()]


def interrupting(after: int) -> Callable[[Mapping[str, Any]], None]:
    """Return a listener that stops a run when it hears of its n-th round or end of a task."""
    seen = 0

    def listen(event: Mapping[str, Any]) -> None:
        nonlocal seen
        seen += event["event"] in ("round", "task")
        if seen == after:
            raise Interrupted

    return listen


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Set the generators that belong to nobody, and leave them afterwards as they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
