"""The files of a run folder as checked data; only what a report reads is named here."""

from __future__ import annotations

from math import isfinite, nan
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MEGABYTE = 1e6
Finite = Annotated[float, Field(allow_inf_nan=False)]
FiniteOrNone = Annotated[
    float | None, AfterValidator(lambda value: value if value is not None and isfinite(value) else None)
]
Loss = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]
Matrix = list[list[Finite]]
HeadTail = tuple[Finite | None, Finite | None]
Confusion = list[list[Annotated[int, Field(ge=0)]]]


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
    accuracy_matrix_of_variants: dict[str, Matrix] = {}
    confusion: Confusion = []
    confusion_uncorrected: Confusion = []
    confusion_of_variants: dict[str, Confusion] = {}
    notes: list[str] = []
    lost_states: list[dict[str, int]] = []
    config: dict[str, Any] = {}

    @property
    def megabytes_up(self) -> float:
        """What all clients sent, in millions of bytes."""
        return self.bytes_up / MEGABYTE

    @property
    def megabytes_down(self) -> float:
        """What all clients received, in millions of bytes."""
        return self.bytes_down / MEGABYTE

    @model_validator(mode="after")
    def _tasks_agree(self) -> ResultRecord:
        tasks = len(self.accuracy_after_task)
        triangle = list(range(1, tasks + 1))
        matrices = self.accuracy_matrix, self.accuracy_matrix_uncorrected, *self.accuracy_matrix_of_variants.values()
        for matrix in matrices:
            if [len(row) for row in matrix] != triangle:
                raise ValueError(f"an accuracy matrix is not a triangle of {tasks} tasks")
        if len(self.accuracy_after_task_uncorrected) != tasks:
            raise ValueError(f"accuracy_after_task_uncorrected does not have {tasks} tasks")
        return self

    @model_validator(mode="after")
    def _tables_are_square(self) -> ResultRecord:
        for table in (self.confusion, self.confusion_uncorrected, *self.confusion_of_variants.values()):
            if any(len(row) != len(table) for row in table):
                raise ValueError("a confusion table is not square")
        return self


class RoundRecord(_Record):
    """One round of ``events.jsonl``; a loss may be NaN (null in the file), for a run that diverged is to be shown."""

    event: Literal["round"]
    task: int
    round: int
    losses: dict[str, Loss]
    client_losses: dict[int, Loss] = {}
    bytes_up: int | None = None
    bytes_down: int | None = None
    seconds: FiniteOrNone = None
    images_per_second: Finite


class VariantRecord(_Record):
    """What another prediction of the same model reached after a task."""

    accuracy: Finite
    per_task: list[Finite]
    per_class: list[Finite] = []
    head_tail: HeadTail


class SpanRecord(_Record):
    """Histograms of the share of energy in one group's span, of test features of old and of new classes.

    The prior of a run that diverged is NaN, which is as good as none.
    """

    of_tail: list[int]
    of_head: list[int]
    prior: FiniteOrNone = None


class EnergiesRecord(_Record):
    """Energies of the test features in the span of new (head) and of old (tail) prototypes."""

    head: SpanRecord
    tail: SpanRecord


class TaskRecord(_Record):
    """One finished task of ``events.jsonl``."""

    event: Literal["task"]
    task: int
    accuracy: Finite
    accuracy_uncorrected: Finite
    per_task: list[Finite]
    per_task_uncorrected: list[Finite]
    per_class: list[Finite] = []
    per_class_uncorrected: list[Finite] = []
    head_tail: HeadTail
    head_tail_uncorrected: HeadTail
    variants: dict[str, VariantRecord] = {}
    energies: EnergiesRecord | None = None


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
    new: int | None = None  # how many of them are the task's own, the first ones; None: all
    domain: str | None = None
    samples: int | None = None  # nobody but their owners may know
    present: int
    participants_per_round: int
    samples_per_client: SpreadRecord | None = None
    classes_per_client: SpreadRecord | None = None
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
