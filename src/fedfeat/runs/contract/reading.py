"""Which keys of its settings a method reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

from fedfeat.algorithm.registry import Part
from fedfeat.methods import PARTS, parts_of
from fedfeat.runs.contract.trial import Changes, Trial
from fedfeat.runs.experiment import Experiment


def unread_settings(trial: Trial, changes: Changes) -> list[str]:
    """Return the keys of the author's tables that a run does not read, and that no line of the files would read.

    A key may matter only with another value of a switch or in a later round, so both are asked.
    """
    config = trial.config(changes)
    parts = [part for part in parts_of(trial.method) if trial.source.of_function(part.build)]
    unread = {key for part in parts for key in _keys(part)}
    with patch.dict(PARTS, {part.name: _noting(part, unread) for part in parts}):
        trial.finish(Experiment(config, trial.dataset))
    return sorted(key for key in unread if not trial.source.reads(key.rpartition(".")[2]))


def _keys(part: Part) -> Iterator[str]:
    """Yield the keys of its table that are a part's own: several may share one."""
    own = [pattern.partition(".")[0] for pattern in part.reads]
    yield from (f"{part.table}.{k}" for k in part.settings.model_fields if any(fnmatchcase(k, p) for p in own))


def _noting(part: Part, unread: set[str]) -> Part:
    """Return a part that takes the keys that it reads out of a set."""
    keys = part.settings.model_fields

    class Noting(part.settings):  # type: ignore[name-defined, misc]
        def __getattribute__(self, name: str) -> Any:
            if name in keys:
                unread.discard(f"{part.table}.{name}")
            elif name in ("__dict__", "__iter__", "model_dump"):  # all of them at once
                unread.difference_update(f"{part.table}.{key}" for key in keys)
            return super().__getattribute__(name)

    def build(*arguments: Any) -> Any:
        *method, settings = arguments
        noting = settings.model_copy()
        object.__setattr__(noting, "__class__", Noting)
        return part.build(*method, noting)

    return replace(part, build=build)
