"""Promises about training steps: they run on any engine, wait for no device, and use the settings there are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch

from fedfeat.engines.cuda.simulated import simulated_gpu
from fedfeat.federation import training
from fedfeat.runs.contract.both_ways import BesideCaptured, BesideVectorised, BothWays
from fedfeat.runs.contract.promise import Broken, NotApplicable, promise
from fedfeat.runs.contract.reading import unread_settings
from fedfeat.runs.contract.trial import Trial
from fedfeat.runs.contract.waiting import Waiting

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
        engine = _both_ways(trial, BesideVectorised, {"vectorised": 50})
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
        engine = _both_ways(trial, BesideCaptured, own)
    if not engine.used:
        raise NotApplicable("a reference or penalty is not Capturable, so engine cuda trains client after client")
    _refuse(engine, "captured")


def _both_ways(trial: Trial, kind: type[BothWays], own: dict[str, Any]) -> BothWays:
    engine = trial.run({**SHORT, "engine": own}, factory=kind).experiment.engine
    assert isinstance(engine, BothWays)
    return engine


def _refuse(engine: BothWays, how: str) -> None:
    if engine.difference is not None:
        raise Broken(
            f"{how}, {engine.difference}",
            "let a loss term depend on its step alone: a value of the host is frozen when a step is captured",
        )
