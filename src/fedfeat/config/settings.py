"""How long clients are awaited, where it runs and what it leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedfeat.core.settings import Settings


class FederationSettings(Settings):
    """How long the server waits for clients, and how many it goes on without."""

    quorum: float = Field(
        0.5, ge=0, le=1, description="share of the chosen clients that must reply; with fewer the run stops, resumable"
    )
    deadline: float = Field(600.0, gt=0, description="seconds that clients have for a reply (engine flower)")
    wait: float = Field(
        300.0,
        gt=0,
        description="engine flower: seconds that the server waits for all clients at the start, later for a quorum",
    )
    most_samples: int = Field(
        1_000_000, ge=1, description="most samples that a client with images of its own may count (engine flower)"
    )
    poll: float = Field(0.1, gt=0, description="seconds between two checks for replies (engine flower)")


class EngineSettings(Settings):
    """Where clients are run."""

    name: Literal["inprocess", "cuda", "flower"] = Field(
        "inprocess",
        description="one client after another on any device, captured steps on one NVIDIA GPU, or processes and "
        "machines of their own (set by fedfeat server and fedfeat federate)",
    )
    device: str = Field("auto", description="cpu, cuda or cuda:1; auto takes a GPU if there is one")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="arithmetic of the backbone; averaging, head and losses stay in float32"
    )
    replicas: int = Field(0, ge=0, description="clients trained at once by engine cuda; 0 chooses by memory")
    vectorised: int = Field(
        0, ge=0, description="most small clients in one step; 0 chooses by size and memory, 1 trains one by one"
    )
    kernels: Literal["auto", "triton", "compiled", "torch"] = Field(
        "auto",
        description="what engine cuda trains with: kernels of its own in Triton, PyTorch's compiler (a minute, once "
        "per machine), or PyTorch as it is; auto takes its own where Triton is installed",
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0 leaves the choice to PyTorch")


class RunSettings(Settings):
    """What a run leaves behind, and whether it stops when it diverges; nothing here changes a result."""

    out: str = Field("runs", description="folder that run folders are made in")
    name: str | None = Field(None, description="name of the run folder; default is data set, method and seed")
    checkpoint_seconds: float = Field(
        20.0,
        ge=0,
        description="least time between two checkpoints inside a task; 0 writes one after every round",
    )
    keep_task_ends: bool = Field(
        False,
        description="keep the checkpoint at the end of every task, to which 'fedfeat rollback' can go back; costs the "
        "model and the clients' states per task",
    )
    stop_on_divergence: bool = Field(
        True, description="stop when a loss or the averaged weights are not finite; false goes on all the same"
    )
    keep_models: bool = Field(False, description="keep the model that each task ended with, as models/task-NN")


class TrackerSettings(Settings):
    """Copies of a run's numbers for other tools; off by default, and nothing here changes a result."""

    tensorboard: bool = Field(False, description="write event files for TensorBoard into the run folder")
    wandb: str | None = Field(
        None, min_length=1, description="project for Weights & Biases; offline unless WANDB_MODE says otherwise"
    )
    mlflow: str | None = Field(
        None, min_length=1, description="tracking server (http://...), database (sqlite:///...) or folder for MLflow"
    )
