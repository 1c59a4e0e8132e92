"""What a run would take: images, steps, bytes and time, reckoned from a rehearsal; the work of a dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from fedfeat.algorithm.sent import PREVIOUS_MODEL, Sent
from fedfeat.config.config import Config
from fedfeat.data import Dataset, load_dataset
from fedfeat.data.cache import TOLD_BYTES
from fedfeat.data.settings import OWNED
from fedfeat.engines.base import image_bytes
from fedfeat.methods import parts_of
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.identity import deciding_settings
from fedfeat.runs.rehearsal import SECONDS, Rehearsal, memory_bytes, rehearse, small_engine
from fedfeat.runs.workload import Workload

WEIGHTS = "down/train/weights"
EVERYBODY_SENDS = ("*/train/weights", "up/train/samples", "up/train/loss.*")


@dataclass(frozen=True)
class TaskForecast:
    """What one task of a run would take."""

    clients: int  # that have joined by then
    participants: int  # per round
    images: int  # of the task
    exemplars: int  # kept of earlier tasks
    rounds: int
    steps: int
    trained: int  # images, each as often as it is seen
    up: float
    down: float
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """What a run would take, task by task, and what was put together for it."""

    tasks: tuple[TaskForecast, ...]
    notes: tuple[str, ...]
    experiment: dict[str, Any]  # as the first event of a run tells it
    memory: tuple[int, int]  # bytes in use at most, and bytes that there are

    def left(self, done: float = 0.0) -> TaskForecast:
        """Return the sum over the tasks that are left; ``done`` counts tasks, one that is begun by its rounds."""
        return total(self.tasks, [min(max(number + 1 - done, 0.0), 1.0) for number in range(len(self.tasks))])


def total(tasks: Sequence[TaskForecast], shares: Sequence[float]) -> TaskForecast:
    """Return the sum over tasks, each with a share of it; what does not add up is that of the last one."""
    sums = {
        name: sum(getattr(task, name) * share for task, share in zip(tasks, shares, strict=True))
        for name in ("rounds", "steps", "trained", "images", "up", "down", "seconds")
    }
    whole = {name: round(value) if name != "seconds" else value for name, value in sums.items()}
    return replace(tasks[-1], **whole)


class DryRuns:
    """Forecasts of many runs: images are read once, and runs that differ in their seed alone are rehearsed once."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.datasets: dict[str, Dataset] = {}
        self.rehearsals: dict[str, Rehearsal] = {}

    def forecast(self, config: Config) -> Forecast:
        """Put a run together and return what it would take; whatever is wrong is raised as by the run."""
        experiment = Experiment(config, self._dataset(config), engine=small_engine)
        kind = kind_of(config)
        if kind not in self.rehearsals:
            self.rehearsals[kind] = rehearse(experiment, self.seconds)
        return forecast(experiment, self.rehearsals[kind])

    def _dataset(self, config: Config) -> Dataset | None:
        if config.data.name == OWNED:
            return None
        drawn = config.data.subset_classes is not None or config.data.validation is not None
        key = f"{config.data.model_dump_json()} {config.seed if drawn else None}"
        if key not in self.datasets:
            self.datasets[key] = load_dataset(config.data, seed=config.seed, write_cache=False)
        return self.datasets[key]


def kind_of(config: Config) -> str:
    """Return something that is equal for runs that differ in their seed alone."""
    return json.dumps(deciding_settings(config, place=True, without=("seed",)), sort_keys=True)


def forecast(experiment: Experiment, rehearsal: Rehearsal) -> Forecast:
    """Return what a run would take, from what its rehearsal took."""
    whole = experiment.workload(experiment.config, experiment.scenario)
    sends = [sent for part in parts_of(experiment.config.method) for sent in part.sends]
    sends += list(experiment.method.sends.values())
    tasks = tuple(_task(task, whole, rehearsal, sends) for task in range(experiment.scenario.num_tasks))
    memory = rehearsal.memory, memory_bytes(experiment.engine.device)
    return Forecast(tasks, tuple(_notes(experiment, rehearsal, sends)), experiment.start_event(), memory)


def _task(task: int, whole: Workload, rehearsal: Rehearsal, sends: list[Sent]) -> TaskForecast:
    like = min(task, len(rehearsal.tasks) - 1)  # the task itself, or the last one that there was time for
    small, scenario, trained = rehearsal.tasks[like], whole.scenario, whole.images(task)
    sent = {"up": 0.0, "down": 0.0}
    for entry, size in small.traffic.items():
        declared = declaration(entry, sends)
        times = rehearsal.workload.crossings(like, entry, declared)
        if declared is not PREVIOUS_MODEL and times:
            sent[entry.split("/")[0]] += size * whole.crossings(task, entry, declared) / times
    if whole.method.keeps_previous_model and task > 0:
        before = rehearsal.tasks[min(task - 1, like)].traffic[WEIGHTS]
        each = before / rehearsal.workload.crossings(min(task - 1, like), WEIGHTS, None)
        sent["down"] += each * whole.late_comers(task)
    return TaskForecast(
        clients=len(scenario.present(task)),
        participants=scenario.participants_per_round(task),
        images=len(scenario.splits[task].indices),
        exemplars=int(whole.exemplars(task).sum()),
        rounds=whole.rounds,
        steps=whole.steps(task),
        trained=trained,
        up=sent["up"],
        down=sent["down"],
        seconds=(trained * small.seconds / small.images if small.images else 0.0) + small.end,
    )


def declaration(entry: str, sends: list[Sent]) -> Sent | None:
    """Return what a method declares of an entry of its traffic."""
    return next((sent for sent in sends if fnmatchcase(entry, sent.entry)), None)


def _notes(experiment: Experiment, rehearsal: Rehearsal, sends: list[Sent]) -> Iterator[str]:
    done, tasks = len(rehearsal.tasks), experiment.scenario.num_tasks
    size = image_bytes(experiment.dataset)
    if size >= TOLD_BYTES:
        where = "read from disk batch by batch" if experiment.engine.train_images.on_disk else "held on the device"
        yield f"images take {size / 1e9:.1f} GB, {where}"
    if done < tasks or not rehearsal.tasks[-1].whole:
        how = "" if rehearsal.tasks[-1].whole else ", whose end was cut off: bytes and time are at least these"
        yield f"there was time to rehearse {done} of {tasks} tasks; the others are reckoned like the last of these{how}"
    crossed = {entry for task in rehearsal.tasks for entry in task.traffic if not _is_common(entry)}
    loose = sorted(entry for entry in crossed if _inexact(declaration(entry, sends)))
    if loose:
        yield f"bytes are exact but for {', '.join(loose)}, whose size depends on what is trained"
    if experiment.method.held_out:
        yield "images that clients hold out of training are counted as if they trained on them"


def _inexact(sent: Sent | None) -> bool:
    """Whether the size of an entry depends on what is trained, or is not declared."""
    return sent is None or sent.shape is None or sent.at_most or "h" in sent.shape


def _is_common(entry: str) -> bool:
    return any(fnmatchcase(entry, pattern) for pattern in EVERYBODY_SENDS)
