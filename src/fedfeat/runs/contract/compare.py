"""Where two runs that should be the same part, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat.federation.loop import Event
from fedfeat.runs.contract.trial import history
from fedfeat.runs.folder import RunFolder

TELLING = ("losses.", "numbers.", "accuracy")  # of the keys that differ, these say most


def first_difference(expected: Sequence[Event], found: Sequence[Event]) -> str | None:
    """Return the first number in which two histories differ."""
    for ours, theirs in zip(expected, found, strict=False):
        a, b = flatten(ours), flatten(theirs)
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        if keys:
            key = min(keys, key=lambda k: next((i for i, t in enumerate(TELLING) if k.startswith(t)), len(TELLING)))
            return f"in {_place(ours)} {_named(key)} is {_told(b.get(key))} instead of {_told(a.get(key))}"
    return None if len(expected) == len(found) else f"it has {len(found)} events instead of {len(expected)}"


def difference(expected: Path, found: Path) -> str | None:
    """Return where two finished runs part: an event, or else the final model."""
    told = first_difference(history(expected), history(found))
    if told is not None:
        return told
    same = final_weights(expected) == final_weights(found)
    return None if same else "the final weights are others, though all losses are the same"


def final_weights(folder: Path) -> bytes:
    """Return the bytes of the model in the last checkpoint of a run."""
    loaded = RunFolder.open(folder).checkpoints.load()
    if loaded is None:
        raise FedfeatError(f"{folder}: the run left no checkpoint, so there are no weights to compare")
    return loaded[0].weights.cpu().numpy().tobytes()


def _place(event: Event) -> str:
    return f"task {event['task']}, round {event['round']}" if event["event"] == "round" else f"task {event.get('task')}"


def _named(key: str) -> str:
    table, _, name = key.partition(".")
    return f"the loss {name!r}" if table == "losses" else name or key


def _told(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
