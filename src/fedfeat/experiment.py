"""From a configuration to a result: start an experiment in a folder, or take it up where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedfeat.config import Config, load_config
from fedfeat.data import Dataset, fingerprint, load_dataset
from fedfeat.engines import make_engine
from fedfeat.errors import CheckpointError, ConfigError
from fedfeat.evaluate.metrics import (
    average_incremental_accuracy,
    backward_transfer,
    forgetting,
    overall_accuracy,
    task_accuracies,
)
from fedfeat.federation.loop import Event, Federation, Listener
from fedfeat.federation.runfolder import RunFolder, refuse_other_config, result_keys
from fedfeat.federation.server import Progress
from fedfeat.files import write_json
from fedfeat.methods.method import Method
from fedfeat.scenario import Scenario, build_scenario

Result = dict[str, Any]


def run_name(config: Config) -> str:
    """Return the run folder's name: what was run, on what, with which seed."""
    return config.run.name or f"{config.data.name}-{config.method}-seed{config.seed}"


def start(config: Config, out: Path | None = None, listeners: tuple[Listener, ...] = ()) -> Result:
    """Run an experiment from the beginning and return its result."""
    experiment = Experiment(config)
    path = out or Path(config.run.out) / run_name(config)
    folder = RunFolder.create(path, config, experiment.scenario.to_json(experiment.dataset.class_names))
    return experiment.run(folder, Progress(), listeners)


def resume(path: Path, listeners: tuple[Listener, ...] = ()) -> Result:
    """Continue an interrupted run; the outcome has the same bytes as that of an uninterrupted one."""
    folder = RunFolder.open(path)
    config = load_config(folder.config_path)
    loaded = folder.checkpoints.load()
    if loaded is not None:
        refuse_other_config(path, config, loaded[2]["config"])
    done = folder.result()
    if done is not None:
        return done
    experiment = Experiment(config)
    if loaded is None:
        folder.cut_events(0)
        return experiment.run(folder, Progress(), listeners)
    progress, states, manifest = loaded
    if manifest["data"] != experiment.fingerprint:
        raise CheckpointError(
            f"{path}: the data set {config.data.name!r} found now is not the one the run began with; "
            "point data.path to the original files"
        )
    folder.cut_events(manifest["events_size"])
    experiment.engine.restore(states)
    progress.move_to(experiment.engine.device)
    return experiment.run(folder, progress, listeners)


class Experiment:
    """Everything a run needs, put together and checked before anything is written."""

    def __init__(self, config: Config, dataset: Dataset | None = None, scenario: Scenario | None = None) -> None:
        self.config = config
        self.method: Method = config.build_method()
        self.dataset = dataset or load_dataset(config.data, seed=config.seed)
        self.scenario = scenario or build_scenario(
            self.dataset.train_labels, self.dataset.num_classes, config.scenario, config.seed
        )
        self.engine = make_engine(config, self.dataset, self.scenario, self.method)
        self.fingerprint = fingerprint(self.dataset)
        dim = self.engine.network.backbone.feature_dim
        if self.method.has_etf_head and dim < self.dataset.num_classes:
            raise ConfigError(
                f"method: the ETF head of {config.method!r} needs at least as many feature dimensions as classes, "
                f"and this model has {dim} for {self.dataset.num_classes} classes; raise model.width or take resnet18"
            )

    def run(self, folder: RunFolder, progress: Progress, listeners: tuple[Listener, ...]) -> Result:
        """Run to the end, with events and checkpoints in the folder."""

        def emit(event: Event) -> None:
            folder.append_event(event)
            for listener in listeners:
                listener(event)

        begun = self._start_event()
        if len(progress.weights) == 0:
            folder.append_event(begun)
        where = {"task": progress.task + 1, "round": progress.round} if len(progress.weights) else None
        for listener in listeners:
            listener({**begun, "folder": str(folder.path), "resumed_at": where})
        federation = Federation(
            self.config,
            self.scenario,
            self.method,
            self.engine,
            progress,
            folder=folder.path,
        )
        federation.run(emit, self._saver(folder))
        result = summarise(self.config, self.scenario, progress, self.method.notes)
        write_json(folder.result_path, result)
        for listener in listeners:
            listener({"event": "end", "folder": str(folder.path), "result": result})
        return result

    def _saver(self, folder: RunFolder) -> Callable[[Progress], None]:
        last = time.monotonic()

        def save(progress: Progress) -> None:
            nonlocal last
            if not progress.finished and time.monotonic() - last < self.config.run.checkpoint_seconds:
                return
            extra = {
                "config": result_keys(self.config),
                "data": self.fingerprint,
                "events_size": folder.events_size(),
            }
            folder.checkpoints.save(progress, self.engine.states, self.engine.touched, extra)
            self.engine.touched.clear()
            last = time.monotonic()

        return save

    def _start_event(self) -> Event:
        batch = self.config.model.norm == "batch"
        norm = "BatchNorm running statistics are averaged with the weights" if batch else "GroupNorm, no statistics"
        return {
            "event": "start",
            "method": self.config.method,
            "dataset": self.dataset.name,
            "tasks": self.scenario.num_tasks,
            "rounds": self.config.train.rounds,
            "clients": self.scenario.num_clients,
            "device": str(self.engine.device),
            "parameters": sum(p.numel() for p in self.engine.network.backbone.parameters()),
            "notes": list(self.method.notes),
            "aggregation": f"{self.config.train.aggregation} average; {norm}",
        }


def summarise(config: Config, scenario: Scenario, progress: Progress, notes: Sequence[str] = ()) -> Result:
    """Return the result of a finished run: every metric is a function of the confusion tables."""
    tasks = scenario.task_classes
    tables = {"plain": [t.plain for t in progress.tables], "corrected": [t.corrected for t in progress.tables]}
    matrices = {k: [task_accuracies(t, tasks[: i + 1]) for i, t in enumerate(ts)] for k, ts in tables.items()}
    overall = {k: [overall_accuracy(t) for t in ts] for k, ts in tables.items()}
    matrix, corrected, plain = matrices["corrected"], overall["corrected"], overall["plain"]
    traffic = progress.traffic
    return {
        "method": config.method,
        "dataset": config.data.name,
        "seed": config.seed,
        "final_accuracy": corrected[-1],
        "final_accuracy_uncorrected": plain[-1],
        "accuracy_after_task": corrected,
        "accuracy_after_task_uncorrected": plain,
        "accuracy_matrix": matrix,
        "accuracy_matrix_uncorrected": matrices["plain"],
        "average_incremental_accuracy": average_incremental_accuracy(corrected),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "accuracy_of_variants": {
            name: [overall_accuracy(t.variants[name]) for t in progress.tables] for name in progress.tables[-1].variants
        },
        "confusion": progress.tables[-1].corrected.tolist(),
        "confusion_uncorrected": progress.tables[-1].plain.tolist(),
        "numbers": progress.numbers,
        "notes": list(notes),
        "bytes_up": traffic.total("up"),
        "bytes_down": traffic.total("down"),
        "traffic": dict(sorted(traffic.counts.items())),
        "images_trained": progress.images_trained,
        "images_per_second": progress.images_trained / progress.seconds if progress.seconds else 0.0,
        "seconds": progress.seconds,
        "config": result_keys(config),
    }
