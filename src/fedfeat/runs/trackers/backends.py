"""Where numbers are copied to: TensorBoard, Weights & Biases, MLflow; each package is imported when it is asked for."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.config.config import Config
from fedfeat.core.errors import required
from fedfeat.core.settings import flatten

Scalars = dict[str, float]
EXPERIMENT = "fedfeat"
IDENTITY = "fedfeat.id"  # the tag that finds a run again in MLflow
MOST_PARAMS = 100  # that MLflow takes in one call


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told when a run begins."""

    config: Config
    folder: Path
    id: str  # the same before and after a resume
    first_step: int  # rounds that were done before, when the run is resumed
    resumed: bool


class TensorBoard:
    """Event files with scalars and the configuration in the run folder; ``tensorboard --logdir runs`` shows them."""

    def __init__(self, run: TrackedRun) -> None:
        where, name = "torch.utils.tensorboard.writer", "tensorboard"
        writer = required(where, name, "the tracker to TensorBoard", name)
        # What was written after the checkpoint that a run resumes from is written again.
        purge = run.first_step + 1 if run.resumed else None
        self.writer = writer.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        indented = "\n".join(f"    {line}" for line in run.config.to_toml().splitlines())
        self.writer.add_text("config", indented, run.first_step)

    def log(self, step: int, values: Scalars) -> None:
        """Write one event's numbers."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """Close the event file."""
        self.writer.close()


class WeightsAndBiases:
    """The folder ``wandb`` in the run folder, offline unless WANDB_MODE says otherwise; ``wandb sync`` uploads it."""

    def __init__(self, run: TrackedRun) -> None:
        mode = os.environ.get("WANDB_MODE") or "offline"
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline means that nothing is sent at all
        wandb = required("wandb", "wandb", "the tracker to Weights & Biases")
        # Neither the terminal nor the machine is recorded: only the numbers of the run.
        quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        self.run = wandb.init(
            project=run.config.tracker.wandb,
            name=run.folder.name,
            id=run.id,
            resume="allow" if mode != "offline" else None,  # offline parts of a run share its id instead
            dir=str(run.folder),
            config=run.config.to_table(),
            mode=mode,
            settings=quiet,
        )

    def log(self, step: int, values: Scalars) -> None:
        """Write one event's numbers; a task's join those of its last round."""
        self.run.log(values, step=step)

    def close(self, finished: bool) -> None:
        """Close the run, as failed if it did not reach its end."""
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """Settings as parameters and numbers as metrics of one run, on a server, in a database or in a folder."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when the package is imported
        purpose, package = "the tracker to MLflow", "mlflow-skinny"
        required("sqlalchemy", "mlflow", purpose, package)  # what MLflow's databases need
        self.mlflow = required("mlflow", "mlflow", purpose, package)
        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self.client: Any = self.mlflow.MlflowClient(tracking_uri=tracking_uri(str(run.config.tracker.mlflow)))
        self.run_id = self._earlier(run) or self._new(run)

    def log(self, step: int, values: Scalars) -> None:
        """Write one event's numbers."""
        now, metric = int(time.time() * 1000), self.mlflow.entities.Metric
        self.client.log_batch(self.run_id, metrics=[metric(k, v, now, step) for k, v in values.items()])

    def close(self, finished: bool) -> None:
        """End the run, as killed if it did not reach its end."""
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")

    def _earlier(self, run: TrackedRun) -> str | None:
        if not run.resumed:
            return None
        found = self.client.search_runs([self._experiment()], f"tags.`{IDENTITY}` = '{run.id}'")
        for earlier in found:
            self.client.update_run(earlier.info.run_id, "RUNNING")
        return str(found[0].info.run_id) if found else None

    def _new(self, run: TrackedRun) -> str:
        tags = {IDENTITY: run.id, "folder": str(run.folder), "method": run.config.method}
        run_id = str(self.client.create_run(self._experiment(), run_name=run.folder.name, tags=tags).info.run_id)
        param = self.mlflow.entities.Param
        settings = [param(key, str(value)) for key, value in flatten(run.config.to_table()).items()]
        for start in range(0, len(settings), MOST_PARAMS):
            self.client.log_batch(run_id, params=settings[start : start + MOST_PARAMS])
        return run_id

    def _experiment(self) -> str:
        known = self.client.get_experiment_by_name(EXPERIMENT)
        return str(known.experiment_id if known else self.client.create_experiment(EXPERIMENT))


Tracker = TensorBoard | WeightsAndBiases | MLflow


def tracking_uri(where: str) -> str:
    """Return an address as it is, and a folder as the address of a database in it."""
    if "://" in where or where == "databricks":
        return where
    folder = Path(where).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"
