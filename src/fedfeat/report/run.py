"""One run as a report sees it: read what is there, and say what is not."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedfeat.config.renamed import as_recorded
from fedfeat.core.errors import CheckpointError
from fedfeat.federation.rollback import ROLLBACKS, in_words, rollbacks_of
from fedfeat.report.records import ResultRecord, RoundRecord, ScenarioRecord, TaskRecord

Table = dict[str, Any]
R = TypeVar("R", bound=BaseModel)


@dataclass(frozen=True)
class Run:
    """A run folder's content; ``missing`` says in sentences what could not be read."""

    path: Path
    method: str
    dataset: str
    seed: int | None
    config: Table
    environment: Table
    scenario: ScenarioRecord | None
    rounds: tuple[RoundRecord, ...]
    tasks: tuple[TaskRecord, ...]
    result: ResultRecord | None
    labels: Mapping[str, str]  # what its predictions are called, if it says so
    missing: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return self.result is not None

    def accuracies(self, corrected: bool = True) -> list[float]:
        """Return the accuracy over all seen classes after each finished task."""
        if self.result is not None:
            found = self.result
            return found.accuracy_after_task if corrected else found.accuracy_after_task_uncorrected
        return [t.accuracy if corrected else t.accuracy_uncorrected for t in self.tasks]

    def matrix(self, corrected: bool = True) -> list[list[float]]:
        """Return the accuracy on each task (columns) after each finished task (rows)."""
        if self.result is not None:
            return self.result.accuracy_matrix if corrected else self.result.accuracy_matrix_uncorrected
        return [t.per_task if corrected else t.per_task_uncorrected for t in self.tasks]

    @property
    def variants(self) -> list[str]:
        """Names of the other predictions that were evaluated beside the method's own."""
        return list(dict.fromkeys(name for task in self.tasks for name in task.variants)) or list(
            self.result.accuracy_of_variants if self.result is not None else ()
        )

    @property
    def has_correction(self) -> bool:
        """Whether predictions with the correction ever differ from those without."""
        return self.matrix(True) != self.matrix(False)


def read_run(path: Path) -> Run:
    """Read a run folder, however broken; nothing is raised for what it holds."""
    missing = list[str]()
    config = as_recorded(_table(path / "config.toml", missing))
    if "method" not in config and not missing:
        missing.append("config.toml names no method")
    environment = _table(path / "env.json", missing)
    scenario = _record(ScenarioRecord, path / "scenario.json", missing)
    rounds, tasks, labels = _events(path / "events.jsonl", missing)
    result_path = path / "result.json"
    result = _record(ResultRecord, result_path, missing) if result_path.exists() else None
    if result is not None and not config:
        config = as_recorded(result.config)
    data = config.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    seed = config.get("seed")
    run = Run(
        path=path,
        method=str(config.get("method") or (result.method if result else "unknown method")),
        dataset=str(name or (result.dataset if result else "unknown data set")),
        seed=seed if isinstance(seed, int) else (result.seed if result else None),
        config=config,
        environment=environment,
        scenario=scenario,
        rounds=rounds,
        tasks=tasks,
        result=result,
        labels=labels,
        missing=(),
    )
    return replace(run, missing=(*missing, *_progress(run)))


def _progress(run: Run) -> list[str]:
    """Say that a run diverged, how far one came that has no result, or that its events stop before its result."""
    bad = next((r for r in run.rounds if not all(map(isfinite, r.losses.values()))), None)
    diverged = [] if bad is None else [f"diverged: losses are not finite from task {bad.task}, round {bad.round} on"]
    diverged += _rollbacks(run.path)
    planned = len(run.scenario.tasks) if run.scenario else None
    if run.result is None:
        of = f" of {planned}" if planned else ""
        last = f", {len(run.rounds)} rounds in all" if run.rounds else ""
        return [*diverged, f"unfinished: {len(run.tasks)}{of} tasks done{last}; 'fedfeat resume' continues it"]
    diverged += [
        f"client {loss.get('client')} lost its state in task {loss.get('task')}, round {loss.get('round')}: "
        f"{loss.get('exemplars')} exemplars were left in the federation"
        for loss in run.result.lost_states
    ]
    tasks = len(run.result.accuracy_after_task)
    if len(run.tasks) < tasks:
        told = f"events.jsonl tells of {len(run.tasks)} of {tasks} tasks"
        return [*diverged, f"{told}, so curves over rounds are incomplete"]
    return diverged


def _rollbacks(path: Path) -> list[str]:
    """Say where a run went back to an earlier round."""
    try:
        return [f"the run {in_words(record)}" for record in rollbacks_of(path)]
    except (CheckpointError, KeyError, TypeError):
        return [f"{ROLLBACKS} cannot be read, so it is not known where the run went back"]


def _table(path: Path, missing: list[str]) -> Table:
    """Read a TOML or JSON table; an unreadable one is empty and named in ``missing``."""
    try:
        text = path.read_text(encoding="utf-8")
        value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except FileNotFoundError:
        missing.append(f"{path.name} is not there")
    except (OSError, ValueError, RecursionError) as error:
        missing.append(f"{path.name} cannot be read ({_short(error)})")
    else:
        if isinstance(value, dict):
            return value
        missing.append(f"{path.name} does not hold a table")
    return {}


def _record(model: type[R], path: Path, missing: list[str]) -> R | None:
    before = len(missing)
    table = _table(path, missing)
    if len(missing) > before:
        return None
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        missing.append(f"{path.name} is not as expected ({where + ': ' if where else ''}{first['msg']})")
        return None


def _events(path: Path, missing: list[str]) -> tuple[tuple[RoundRecord, ...], tuple[TaskRecord, ...], dict[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
        missing.append("events.jsonl is not there")
    except OSError as error:
        lines = []
        missing.append(f"events.jsonl cannot be read ({_short(error)})")
    rounds, tasks, labels, unreadable = list[RoundRecord](), list[TaskRecord](), dict[str, str](), 0
    for line in lines:
        try:
            value = json.loads(line)
            kind = value["event"]
            if kind == "round":
                rounds.append(RoundRecord.model_validate(value))
            elif kind == "task":
                tasks.append(_next_task(TaskRecord.model_validate(value), len(tasks)))
            elif kind == "start":
                labels = {str(name): str(label) for name, label in dict(value.get("predictions", {})).items()}
        except (ValueError, TypeError, KeyError, RecursionError):  # pydantic's errors are ValueErrors
            unreadable += 1
    if unreadable:
        missing.append(f"events.jsonl has {unreadable} unreadable line{'s' if unreadable > 1 else ''}")
    return tuple(rounds), tuple(tasks), labels


def _next_task(record: TaskRecord, done: int) -> TaskRecord:
    """Refuse a task out of turn, or one that does not tell of every task so far."""
    if record.task != done + 1 or {len(record.per_task), len(record.per_task_uncorrected)} != {done + 1}:
        raise ValueError(f"task {record.task} follows {done} tasks")
    return record


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
