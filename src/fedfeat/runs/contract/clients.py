"""Promises about clients with little or nothing: one image, one class, no image at all."""

from __future__ import annotations

import numpy as np
import torch

from fedfeat.runs.contract.problem import PER_CLASS, TASKS, scenario_from
from fedfeat.runs.contract.promise import Broken, promise
from fedfeat.runs.contract.trial import Trial

FINITE = "guard sums and means over nothing: a client may hold one image, one class, or nothing"


@promise("odd clients", "clients with one image, one class or nothing at all do no harm")
def odd_clients(trial: Trial) -> None:
    """Run with such clients in every task."""
    run = trial.run(_few(4), scenario=scenario_from(trial.dataset.train_labels, _partitioned()))
    for event in run.history:
        for name, value in event.get("losses", {}).items():
            if value is None or not np.isfinite(value):
                raise Broken(f"the loss {name!r} is {value} in task {event['task']}, round {event['round']}", FINITE)
    if not torch.isfinite(run.progress.weights).all():
        raise Broken("the final weights are not finite", FINITE)


@promise("nobody", "a round in which nobody has an image changes nothing")
def nobody(trial: Trial) -> None:
    """Run with clients that never have an image."""
    empty = scenario_from(trial.dataset.train_labels, [[[], []]] * TASKS)
    before = trial.experiment(_few(2), scenario=empty).engine.begin_task(0)
    run = trial.run(_few(2), scenario=empty)
    trained = run.experiment.engine.network.trained_parameters()
    backbone = sum(parameter.numel() for name, parameter in trained if name.startswith("backbone."))
    if not torch.equal(run.progress.weights[:backbone], before[:backbone]):
        raise Broken("the backbone changed although nobody trained", "leave the weights alone when replies are empty")


def _few(clients: int) -> dict[str, dict[str, int]]:
    return {"scenario": {"clients": clients, "min_samples": 0}}


def _partitioned() -> list[list[list[int]]]:
    def samples(c: int, count: int) -> list[int]:
        return list(range(c * PER_CLASS, c * PER_CLASS + count))

    return [
        # one sample | one class | both classes | nothing at all
        [samples(0, 1), samples(1, 12), samples(0, 20)[1:] + samples(1, 20)[12:], []],
        # no old data and new ones | still nothing | one sample | both classes
        [[], [], samples(2, 1), samples(2, 20)[1:] + samples(3, 20)],
        [samples(4, 9), samples(5, 1), [], samples(4, 20)[9:]],
    ]
