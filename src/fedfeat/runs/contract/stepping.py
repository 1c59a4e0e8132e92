"""Promises about training steps: they run on any engine, wait for no device, and use the settings there are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

import torch

from fedfeat.algorithm.registry import Part
from fedfeat.engines.cuda.simulated import simulated_gpu
from fedfeat.federation import training
from fedfeat.methods import PARTS, parts_of
from fedfeat.runs.contract.both_ways import BothWays
from fedfeat.runs.contract.promise import Broken, NotApplicable, promise
from fedfeat.runs.contract.trial import Changes, Trial
from fedfeat.runs.contract.waiting import Waiting
from fedfeat.runs.experiment import Experiment

FIXED = "use fixed shapes, torch.where instead of a branch, and tensors on the device of step.features"
ENGINES_NEED = ("client order", "device")
# Steps amplify what engines round differently, so the rate is small; batches of 7 leave remainders of many sizes.
SHORT = {"scenario": {"tasks": 2}, "train": {"batch": 7, "rounds": 1, "local_epochs": 1, "lr": 0.01}}


@promise("device", "a training step does not wait for the device")
def device(trial: Trial) -> None:
    """Look at every operation of a training step; on a CPU waiting costs nothing, so nobody would notice."""
    found: list[tuple[str, str]] = []

    def note(what: str) -> None:
        if (line := trial.source.behind_call()) is not None:
            found.append((what, line))

    def watched(*args: Any, **kwargs: Any) -> Any:
        with Waiting(note):
            return step(*args, **kwargs)

    step: Callable[..., Any] = training.train_step
    with patch.object(training, "train_step", watched):
        trial.run(SHORT)
    if found:
        raise Broken(f"{found[0][0]} in a training step", FIXED, found[0][1])


@promise("settings", "every key of the settings is read")
def settings(trial: Trial) -> None:
    """Note which keys are read while the method is built and run."""
    unread = unread_settings(trial, SHORT)
    if unread:
        raise Broken(
            f"{', '.join(map(repr, unread))}: declared in the settings and never read",
            "use it, or leave it out",
            trial.source.of_setting(unread[0].rpartition(".")[2]),
        )


@promise("vectorised", "many small clients trained at once get what each gets by itself", needs=ENGINES_NEED)
def vectorised(trial: Trial) -> None:
    """Train clients both ways in every round."""
    if not trial.built.steps_alike:
        raise NotApplicable("its steps differ between clients (references, penalties, statistics of single steps)")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = _both_ways(trial, {"vectorised": 50})
    reasons = [str(w.message) for w in caught if "cannot be stacked" in str(w.message)]
    if reasons or not engine.used:  # the engine goes back to one by one, which is slower and right
        raise NotApplicable(reasons[0] if reasons else "no two clients were trained at once")
    _refuse(engine, "trained at once")


@promise("captured", "a training step that a GPU captures and replays gives the same", needs=ENGINES_NEED)
def captured(trial: Trial) -> None:
    """Train clients both ways in every round, on a simulated GPU where there is none."""
    there = torch.cuda.is_available()
    with nullcontext() if there else simulated_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = {"name": "cuda", "device": "cuda", "kernels": "torch", "vectorised": 1}
        engine = _both_ways(trial, own)
    if not engine.used:
        raise NotApplicable("a reference or penalty is not Capturable, so engine cuda trains client after client")
    _refuse(engine, "captured")


def _both_ways(trial: Trial, own: dict[str, Any]) -> BothWays:
    engine = trial.run({**SHORT, "engine": own}, factory=BothWays).experiment.engine
    assert isinstance(engine, BothWays)
    return engine


def _refuse(engine: BothWays, how: str) -> None:
    if engine.difference is not None:
        raise Broken(
            f"{how}, {engine.difference}",
            "let a loss term depend on its step alone, for a value of the host is frozen when a step is captured; a "
            "reference that says by_image may not depend on the rest of a batch",
        )


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
