"""Weights & Biases, offline unless the environment variable WANDB_MODE says otherwise; ``wandb sync`` uploads later."""

from __future__ import annotations

import importlib
import os
from typing import Any

from fedfeat.core.errors import MissingExtra
from fedfeat.runs.trackers.scalars import Scalars
from fedfeat.runs.trackers.tracker import MirroredRun


class WandbMirror:
    """Writes to the folder ``wandb`` of the run folder."""

    def __init__(self, run: MirroredRun) -> None:
        mode = os.environ.get("WANDB_MODE") or "offline"
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline means that nothing is sent at all
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingExtra("wandb", "wandb", "the tracker to Weights & Biases") from error
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
