"""MLflow: a tracking server, a database, or a folder, which gets a database of its own."""

from __future__ import annotations

import importlib
import logging
import os
import time
from pathlib import Path
from typing import Any

from fedfeat.core.errors import MissingExtra
from fedfeat.runs.trackers.scalars import Scalars, flat_settings
from fedfeat.runs.trackers.tracker import MirroredRun

EXPERIMENT = "fedfeat"
IDENTITY = "fedfeat.id"  # the tag that finds a run again
MOST_PARAMS = 100  # that MLflow takes in one call


class MLflowMirror:
    """Writes settings as parameters and numbers as metrics of one run."""

    def __init__(self, run: MirroredRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when the package is imported
        try:
            importlib.import_module("sqlalchemy")  # what MLflow's databases need
            self.mlflow: Any = importlib.import_module("mlflow")
        except ImportError as error:
            raise MissingExtra("mlflow-skinny", "mlflow", "the tracker to MLflow") from error
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

    def _earlier(self, run: MirroredRun) -> str | None:
        if not run.resumed:
            return None
        found = self.client.search_runs([self._experiment()], f"tags.`{IDENTITY}` = '{run.id}'")
        for earlier in found:
            self.client.update_run(earlier.info.run_id, "RUNNING")
        return str(found[0].info.run_id) if found else None

    def _new(self, run: MirroredRun) -> str:
        tags = {IDENTITY: run.id, "folder": str(run.folder), "method": run.config.method}
        run_id = str(self.client.create_run(self._experiment(), run_name=run.folder.name, tags=tags).info.run_id)
        param = self.mlflow.entities.Param
        settings = [param(key, str(value)) for key, value in flat_settings(run.config.to_table()).items()]
        for start in range(0, len(settings), MOST_PARAMS):
            self.client.log_batch(run_id, params=settings[start : start + MOST_PARAMS])
        return run_id

    def _experiment(self) -> str:
        known = self.client.get_experiment_by_name(EXPERIMENT)
        return str(known.experiment_id if known else self.client.create_experiment(EXPERIMENT))


def tracking_uri(where: str) -> str:
    """Return an address as it is, and a folder as the address of a database in it."""
    if "://" in where or where == "databricks":
        return where
    folder = Path(where).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"
