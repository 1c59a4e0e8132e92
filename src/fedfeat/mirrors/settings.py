"""Where a run's numbers are shown besides its own folder."""

from __future__ import annotations

from pydantic import Field

from fedfeat.settings import Settings


class MirrorSettings(Settings):
    """Copies of a run's numbers for other tools; off by default, and nothing here changes a result."""

    tensorboard: bool = Field(False, description="write event files for TensorBoard into the run folder")
    wandb: str | None = Field(
        None, min_length=1, description="project for Weights & Biases; offline unless WANDB_MODE says otherwise"
    )
    mlflow: str | None = Field(
        None, min_length=1, description="tracking server (http://...), database (sqlite:///...) or folder for MLflow"
    )
