"""What no checkpoint knows: variables that change while a method runs, and generators that a whole process shares."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.method import Method
from fedfeat.runs.contract.source import Source, place
from fedfeat.runs.contract.trial import Trial


def remembered(trial: Trial) -> tuple[str, str | None] | None:
    """Return what changes during a run although no checkpoint has it, in words, and where it is written."""
    experiment = trial.experiment()
    before = _memory(experiment.method, trial.source)
    trial.finish(experiment)
    after = _memory(experiment.method, trial.source)
    changed = next((name for name in after if before.get(name) != after[name]), None)
    if changed is None:
        return None
    return f"{changed} changes while the method runs", trial.source.of_assignment(changed.rpartition(".")[2])


def _memory(method: Method, source: Source) -> dict[str, Any]:
    return {name: _fingerprint(value) for name, value in _variables(method, source)}


def _variables(method: Method, source: Source) -> Iterator[tuple[str, Any]]:
    parts = (
        *(*method.references, *method.penalties, *method.statistics, *method.server_steps),
        *(*method.task_end_steps(), *([method.predict] if method.predict else ())),
    )
    for part in parts:
        yield from ((f"{type(part).__name__}.{name}", v) for name, v in getattr(part, "__dict__", {}).items())
    for function in (*(term.function for term in (method.loss, *method.terms)), *method.ops().values()):
        if inspect.isfunction(function):
            found = inspect.getclosurevars(function)
            yield from ((f"{function.__qualname__}.{name}", v) for name, v in found.nonlocals.items())
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "") in source:
            yield from (item for item in vars(module).items() if not item[0].startswith("__"))


def _fingerprint(value: Any) -> Any:
    """Return something that differs when the content does."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((key, _fingerprint(entry)) for key, entry in value.items())
    if isinstance(value, list | tuple | set):
        return tuple(map(_fingerprint, value))
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    return value if isinstance(value, int | float | str | None) else id(value)


def where_they_stand() -> tuple[Any, ...]:
    """Return the states of these generators, to be compared."""
    legacy: Any = np.random.get_state(legacy=False)
    return (
        torch.get_rng_state().numpy().tobytes(),
        legacy["state"]["pos"],
        legacy["state"]["key"].tobytes(),
        random.getstate(),
    )


def drawing_line(source: Source, work: Callable[[], object]) -> str | None:
    """Run something line by line; return the first line of the author's files that moves a generator, if one does."""
    states = where_they_stand()
    at_work: str | None = None  # the author's line
    culprit: str | None = None

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal states, at_work, culprit
        now = where_they_stand()
        if now != states:
            culprit = culprit or at_work
            states = now
        back = frame.f_back
        at = back if event == "return" and back is not None else frame
        at_work = place(at.f_code.co_filename, at.f_lineno) if at.f_code.co_filename in source else None
        return look

    earlier = sys.gettrace()
    sys.settrace(lambda frame, event, arg: look if frame.f_code.co_filename in source else None)
    try:
        work()
    finally:
        sys.settrace(earlier)
    return culprit
