"""How clients train, how the server averages, where it runs and what it leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedfeat.settings import Settings


class TrainSettings(Settings):
    """Local training and averaging, the same for every method."""

    rounds: int = Field(100, ge=1, description="communication rounds per task")
    local_epochs: int = Field(2, ge=1, description="passes over the local set per round")
    batch: int = Field(128, ge=1, description="samples per step; the last, smaller batch is kept")
    lr: float = Field(0.04, gt=0, description="learning rate at the start of each task")
    lr_min: float = Field(1e-3, ge=0, description="learning rate that the cosine falls towards")
    schedule: Literal["cosine_per_task", "constant"] = Field(
        "cosine_per_task", description="learning rate over the rounds of a task"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum, started anew at every client visit")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty on every trained number")
    aggregation: Literal["uniform", "samples"] = Field(
        "uniform", description="weight of a client in the average: equal, or by its number of samples"
    )
    model_selection: Literal["last", "lowest_train_loss"] = Field(
        "last", description="which round's model a task ends with; never chosen on test data"
    )

    @model_validator(mode="after")
    def _cosine_goes_down(self) -> TrainSettings:
        if self.schedule == "cosine_per_task" and self.lr_min > self.lr:
            raise ValueError(f"lr_min ({self.lr_min}) must not exceed lr ({self.lr})")
        return self


class FederationSettings(Settings):
    """How long the server waits for clients, and how many it goes on without."""

    quorum: float = Field(
        0.5, ge=0, le=1, description="share of the asked clients that must reply; with fewer the run stops, resumable"
    )
    deadline: float = Field(600.0, gt=0, description="seconds that clients have for a reply (engine flower)")
    wait: float = Field(
        300.0, gt=0, description="seconds that the server waits for a quorum of clients to connect (engine flower)"
    )
    poll: float = Field(0.1, gt=0, description="seconds between two looks for replies (engine flower)")


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
    together: int = Field(
        0, ge=0, description="most small clients in one step; 0 chooses by size and memory, 1 trains one by one"
    )
    kernels: Literal["auto", "triton", "compiled", "torch"] = Field(
        "auto",
        description="what engine cuda trains with: kernels of its own in Triton, PyTorch's compiler (a minute, once "
        "per machine), or PyTorch as it is; auto takes its own where Triton is installed",
    )
    threads: int = Field(0, ge=0, description="CPU threads; 0 leaves the choice to PyTorch")


class RunSettings(Settings):
    """What a run leaves behind; nothing here changes a result."""

    out: str = Field("runs", description="folder that run folders are made in")
    name: str | None = Field(None, description="name of the run folder; default is data set, method and seed")
    checkpoint_seconds: float = Field(
        20.0,
        ge=0,
        description="least time between two checkpoints inside a task; 0 writes one after every round",
    )
    keep_models: bool = Field(False, description="keep the model that each task ended with, as models/task-NN")
