"""The files of a run folder as checked data; only what a report reads is named here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Finite = Annotated[float, Field(allow_inf_nan=False)]
Matrix = list[list[Finite]]
HeadTail = tuple[Finite | None, Finite | None]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ResultRecord(_Record):
    """``result.json``."""

    method: str
    dataset: str
    seed: int
    final_accuracy: Finite
    final_accuracy_uncorrected: Finite
    accuracy_after_task: list[Finite] = Field(min_length=1)
    accuracy_after_task_uncorrected: list[Finite]
    accuracy_matrix: Matrix
    accuracy_matrix_uncorrected: Matrix
    average_incremental_accuracy: Finite
    forgetting: Finite
    backward_transfer: Finite
    bytes_up: int
    bytes_down: int
    traffic: dict[str, int] = {}
    images_per_second: Finite
    seconds: Finite = 0.0
    accuracy_of_variants: dict[str, list[Finite]] = {}
    notes: list[str] = []
    config: dict[str, Any] = {}

    @model_validator(mode="after")
    def _tasks_agree(self) -> ResultRecord:
        tasks = len(self.accuracy_after_task)
        triangle = list(range(1, tasks + 1))
        for matrix in (self.accuracy_matrix, self.accuracy_matrix_uncorrected):
            if [len(row) for row in matrix] != triangle:
                raise ValueError(f"an accuracy matrix is not a triangle of {tasks} tasks")
        if len(self.accuracy_after_task_uncorrected) != tasks:
            raise ValueError(f"accuracy_after_task_uncorrected does not have {tasks} tasks")
        return self


class RoundRecord(_Record):
    """One round of ``events.jsonl``; a loss may be NaN, for a run that diverged is to be shown."""

    event: Literal["round"]
    task: int
    round: int
    losses: dict[str, float]
    images_per_second: Finite


class TaskRecord(_Record):
    """One finished task of ``events.jsonl``."""

    event: Literal["task"]
    task: int
    accuracy: Finite
    accuracy_uncorrected: Finite
    per_task: list[Finite]
    per_task_uncorrected: list[Finite]
    head_tail: HeadTail
    head_tail_uncorrected: HeadTail


class SpreadRecord(_Record):
    """Smallest, middle and largest of some numbers."""

    min: Finite
    median: Finite
    max: Finite


class ClientRecord(_Record):
    """What one client holds of a task: samples per class."""

    client: int = Field(ge=0)
    counts: list[Annotated[int, Field(ge=0)]]


class ScenarioTaskRecord(_Record):
    """One task of ``scenario.json``."""

    task: int
    classes: list[str]
    samples: int
    present: int
    participants_per_round: int
    samples_per_client: SpreadRecord
    classes_per_client: SpreadRecord
    exemplars_per_client: SpreadRecord
    clients: list[ClientRecord] = []

    @model_validator(mode="after")
    def _counts_fit(self) -> ScenarioTaskRecord:
        if any(len(c.counts) != len(self.classes) for c in self.clients):
            raise ValueError(f"task {self.task}: a client's counts do not fit the task's classes")
        return self


class ScenarioRecord(_Record):
    """``scenario.json``."""

    seed: int
    num_clients: int = Field(ge=1)
    tasks: list[ScenarioTaskRecord] = Field(min_length=1)

    @model_validator(mode="after")
    def _clients_exist(self) -> ScenarioRecord:
        if any(c.client >= self.num_clients for t in self.tasks for c in t.clients):
            raise ValueError(f"a client is numbered beyond the {self.num_clients} there are")
        return self
