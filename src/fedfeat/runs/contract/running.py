"""Promises about a whole run: it ends, it learns, and it shares its data and first weights with other methods."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedfeat.data.dataset import Augmentation
from fedfeat.runs.contract.problem import CLIENTS, NUM_CLASSES, TASKS, TESTED
from fedfeat.runs.contract.promise import Broken, promise
from fedfeat.runs.contract.trial import Interrupted, Trial
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder

LEAST, CHANCE = 75.0, 50.0  # percent, of the two classes of the first task
LONG_ENOUGH = 12  # rounds


@promise("runs", "a whole run ends with a result", needs=())
def runs(trial: Trial) -> None:
    """Check the shape of the result and that all of it is finite."""
    run = trial.reference
    result = run.result
    if not torch.isfinite(run.progress.weights).all():
        raise Broken("the final weights are not finite", "lower the weight of the loss")
    rows = [len(row) for row in result["accuracy_matrix"]]
    tested = np.array(result["confusion"]).sum(axis=1).tolist()
    if rows != list(range(1, TASKS + 1)) or tested != [TESTED] * NUM_CLASSES:
        raise Broken(
            f"every test image should be predicted once after the last task, and there are {tested} by class",
            "return one row of logits per image from the prediction, with a column per class",
        )
    if RunFolder.open(run.folder).result() != result:
        raise Broken("result.json is not what the run returned")


@promise("learns", f"the first task is learnt: over {LEAST:g} % of its two classes after {LONG_ENOUGH} rounds")
def learns(trial: Trial) -> None:
    """Check that the loss teaches something."""
    accuracies: list[float] = []

    def listen(event: Mapping[str, Any]) -> None:
        if event["event"] == "task":
            accuracies.append(event["accuracy"])
            raise Interrupted

    upright = replace(trial.dataset, augmentation=Augmentation(1, False, 0.1))  # mirrored, classes look alike
    with suppress(Interrupted):
        trial.finish(Experiment(trial.config({"train": {"rounds": LONG_ENOUGH}}), upright), (listen,))
    if accuracies[0] <= LEAST:
        raise Broken(
            f"{accuracies[0]:.0f} % is right after the first task, and {CHANCE:g} % would be chance",
            "look at the losses: lower the weight of a term that drowns the others, or check its sign",
        )


@promise("shared start", "with the same seed all methods have the same clients, images and initial backbone")
def shared_start(trial: Trial) -> None:
    """Check that two methods can be compared."""
    ours, plain = trial.experiment(), trial.plain()
    for task in range(TASKS):
        for client in range(CLIENTS):
            if not np.array_equal(ours.scenario.samples(task, client), plain.scenario.samples(task, client)):
                raise Broken(f"client {client} has other images in task {task + 1} than with other methods")
    networks = (experiment.engine.network.backbone for experiment in (ours, plain))
    for a, b in zip(*(network.parameters() for network in networks), strict=True):
        if not torch.equal(a, b):
            raise Broken("the backbone starts from other weights than with other methods")
