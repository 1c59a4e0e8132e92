"""Whole runs on the toy problem, and what they sent beyond the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, Result
from fedfeat.runs.folder import RunFolder
from fedfeat.scenario import Scenario
from toy import toy_config, toy_dataset


@dataclass
class Run:
    experiment: Experiment
    progress: Progress
    result: Result

    @property
    def weights(self) -> bytes:
        return self.progress.weights.numpy().tobytes()


def run_toy(folder: Path, method: str, scenario_object: Scenario | None = None, **changes: Any) -> Run:
    experiment = Experiment(toy_config(method, **changes), toy_dataset(), scenario_object)
    progress = Progress()
    run_folder = RunFolder.create(folder / method.replace("+", "-"), experiment.config, {})
    return Run(experiment, progress, experiment.run(run_folder, progress, ()))


def saved(folder: Path) -> Progress:
    """Return the progress in the last checkpoint of a run."""
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    return loaded[0]


def weights(folder: Path) -> bytes:
    """Return the bytes of the model in the last checkpoint of a run."""
    return saved(folder).weights.numpy().tobytes()


def extra_traffic(result: Result) -> dict[str, int]:
    """Bytes by entry, without the model, the number of samples and the losses."""
    return {
        key: size
        for key, size in result["traffic"].items()
        if (name := key.split("/")[-1]) not in ("weights", "samples") and not name.startswith("loss.")
    }


def trainable_bytes(method: str, **changes: Any) -> list[int]:
    """Size of the trained weights in each task of the toy problem, as float32."""
    engine = Experiment(toy_config(method, **changes), toy_dataset()).engine
    sizes = []
    for task in range(engine.scenario.num_tasks):
        engine.begin_task(task)
        sizes.append(4 * engine.model.num_trainable)
    return sizes
