"""What a scenario is made of: tasks, clients, label skew, participation, exemplar budget."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictFloat, StrictInt, field_validator, model_validator

from fedfeat.core.settings import Settings


class ScenarioSettings(Settings):
    """Who sees what, and when."""

    tasks: int = Field(default=5, ge=1, description="number of tasks that the classes are split into")
    brings: Literal["classes", "domains"] = Field(
        default="classes",
        description="what is new in a task: classes, or images of the same classes from another domain of the data set",
    )
    blurry: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of a class's training images that come later than in its own task, spread over later tasks",
    )
    clients: int = Field(default=5, ge=1, description="number of registered clients; their ids start at 0")
    task_names: tuple[tuple[str, ...], ...] | None = Field(
        default=None,
        description='the classes of each task by name, e.g. [["cat", "dog"], ["ship"]]; for data.name = "owned"',
    )
    class_order: Literal["seeded", "natural", "legacy"] | tuple[int, ...] = Field(
        default="seeded",
        description="order in which classes arrive: drawn from the seed, as in the data set, drawn as the "
        "published code does (NumPy's legacy generator), or an explicit list of data-set labels",
    )
    partition: Literal["dirichlet", "plain_dirichlet", "iid", "shards"] = Field(
        default="dirichlet",
        description="how a task's samples are partitioned over clients; 'dirichlet' stops feeding a client that "
        "already holds its even share, 'plain_dirichlet' does not",
    )
    beta: float = Field(default=0.5, gt=0, description="Dirichlet concentration: smaller means stronger label skew")
    shards_per_client: int = Field(default=2, ge=1, description="label-sorted pieces each client gets from 'shards'")
    min_samples: int = Field(
        default=1,
        ge=0,
        description="redraw until every present client holds this many samples of a task; 0: anything",
    )
    partition_seed: Literal["per_task", "legacy"] = Field(
        default="per_task",
        description="'per_task' draws every task's partition anew; 'legacy' restarts NumPy's legacy "
        "generator with the run's seed before each task, as the published code does",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        description="seed of class order, partitions and participation, for runs that differ in weights and batches "
        "only; unset: the run's seed",
    )
    order_seed: Literal["scenario", "run"] = Field(
        default="scenario",
        description="seed of the class order: that of the partitions, or the run's, so that only the order follows it",
    )
    participation: StrictInt | StrictFloat = Field(
        default=1.0,
        description="clients per round: 0.4 is a fraction of those present, 4 a number; 1.0 is all, 1 is one",
    )
    asked_at_end: Literal["present", "participants"] = Field(
        default="present",
        description="clients that are asked at the end of a task, for exemplars above all: all that are present, or "
        "those that were drawn for one of its rounds, who then share the budget",
    )
    joins: dict[str, int] = Field(
        default_factory=dict,
        description='late clients and the task they join in, e.g. { "3" = 2, "50-99" = 4 }; others: 1',
    )
    leaves: dict[str, int] = Field(
        default_factory=dict,
        description='clients that leave and the task from which on they are gone, exemplars and all, e.g. { "3" = 4 }',
    )
    lag: dict[str, int] = Field(
        default_factory=dict,
        description='slower clients and how many tasks they are behind, e.g. { "3" = 1, "5-9" = 2 }; others: 0',
    )
    budget: int = Field(default=300, ge=0, description="exemplars kept from each task")
    budget_scope: Literal["global_per_task", "per_client_per_task"] = Field(
        default="global_per_task",
        description="whether the budget is shared by all clients or each client's own",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_many_tasks_as_named(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(table.get("task_names"), list | tuple):
            named = len(table["task_names"])
            if table.get("tasks", named) != named:
                raise ValueError(f"task_names lists {named} tasks but tasks is {table['tasks']}; leave tasks out")
            return {**table, "tasks": named}
        return table

    @field_validator("task_names")
    @classmethod
    def _each_name_once(cls, tasks: tuple[tuple[str, ...], ...] | None) -> tuple[tuple[str, ...], ...] | None:
        names = [name for task in tasks or () for name in task]
        if tasks is not None and not all(tasks):
            raise ValueError("task_names has a task without a class; name at least one")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task_names names {twice[0]!r} twice; a class arrives once")
        return tasks

    @field_validator("class_order")
    @classmethod
    def _no_class_twice(cls, order: str | tuple[int, ...]) -> str | tuple[int, ...]:
        if not isinstance(order, str) and len(set(order)) < len(order):
            raise ValueError("class_order names a class twice; list every data-set label once")
        return order

    @field_validator("participation")
    @classmethod
    def _sensible_participation(cls, value: int | float) -> int | float:
        if isinstance(value, float) and not 0 < value <= 1:
            raise ValueError(f"participation as a fraction must be in (0, 1], got {value}; a whole number is a count")
        if isinstance(value, int) and value < 1:
            raise ValueError(f"participation as a number must be at least 1, got {value}")
        return value

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if isinstance(self.participation, int) and self.participation > self.clients:
            raise ValueError(
                f"participation asks for {self.participation} clients per round but there are only "
                f"{self.clients}; lower participation or raise clients"
            )
        if self.first_tasks().min() > 0:
            raise ValueError("joins leaves nobody for task 1; let at least one client start in task 1")
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        """Yield what has no meaning together, a sentence each."""
        named, domains = self.task_names is not None, self.brings == "domains"
        if domains and self.blurry:
            yield (
                "blurry moves images of a class to later tasks, and with brings = 'domains' no task has classes of its "
                "own; leave one of the two out"
            )
        for key, given in (("blurry", self.blurry), ("lag", self.lag), ("brings = 'domains'", domains)):
            if named and given:
                yield f"{key} says which images come when, and with task_names clients bring their own; leave one out"
        if self.blurry and self.tasks == 1:
            yield "blurry moves images to later tasks, and there is one task; raise tasks or leave blurry out"
        lags, begins, ends = self.lags(), np.maximum(self.first_tasks(), self.lags()), self.end_tasks()
        never = np.flatnonzero(begins >= ends)
        if len(never):
            begun, gone = begins[never[0]] + 1, ends[never[0]] + 1
            yield f"client {never[0]} would begin in task {begun} and is gone from task {gone} on; let it begin earlier"
        for task in range(self.tasks):
            here = self.present(task)
            if not (lags[here] == 0).any():
                yield (
                    f"joins, leaves and lag leave nobody in task {task + 1} who is not behind; let at least one client "
                    "without lag take part in it"
                )

    def streams(self) -> list[str]:
        """Return in which ways this differs from classes that come at once, at the same time for all clients."""
        found = {"blurry": self.blurry > 0, "lag": any(self.lag.values()), "domains": self.brings == "domains"}
        return [name for name, is_so in found.items() if is_so]

    def present(self, task: int) -> NDArray[np.int64]:
        """Return the clients that take part in a task (counted from 0), increasing ids."""
        begun = np.maximum(self.first_tasks(), self.lags()) <= task
        return np.flatnonzero(begun & (task < self.end_tasks()))

    def first_tasks(self) -> NDArray[np.int64]:
        """Return for every client the task (counted from 0) from which on it is present."""
        return self._by_client("joins", 1, range(1, self.tasks + 1), "tasks run from") - 1

    def end_tasks(self) -> NDArray[np.int64]:
        """Return for every client the task (counted from 0) from which on it is gone; the number of tasks: never."""
        return self._by_client("leaves", self.tasks + 1, range(2, self.tasks + 1), "clients leave in tasks") - 1

    def lags(self) -> NDArray[np.int64]:
        """Return for every client how many tasks it is behind."""
        return self._by_client("lag", 0, range(self.tasks), "a lag is from")

    def _by_client(self, name: str, default: int, allowed: range, words: str) -> NDArray[np.int64]:
        """Return the number that a table gives to every client."""
        found = np.full(self.clients, default, dtype=np.int64)
        named = np.zeros(self.clients, dtype=bool)
        for key, value in getattr(self, name).items():
            ids = self._clients_of(name, key)
            if value not in allowed:
                raise ValueError(
                    f"{name} says {value} for client {key!r} but {words} {allowed.start} to {allowed.stop - 1}"
                )
            if named[ids].any():
                raise ValueError(f"{name} names a client of {key!r} twice; give each client one number")
            named[ids], found[ids] = True, value
        return found

    def _clients_of(self, name: str, key: str) -> slice:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", key.strip())
        if match is None:
            raise ValueError(f"{name} has the key {key!r}; write a client id such as '3' or a range such as '50-99'")
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < self.clients:
            raise ValueError(f"{name} names client {key!r} but client ids run from 0 to {self.clients - 1}")
        return slice(low, high + 1)
