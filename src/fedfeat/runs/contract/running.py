"""Promises about a whole run: it ends, it learns, it starts like other methods, and clients with little do no harm."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedfeat.config.presets import COMPARED
from fedfeat.data.dataset import Augmentation
from fedfeat.runs.contract.problem import CLIENTS, NUM_CLASSES, PER_CLASS, TASKS, TESTED, scenario_from
from fedfeat.runs.contract.promise import Broken, promise
from fedfeat.runs.contract.trial import Interrupted, Trial
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder

PLAIN = COMPARED.split(",")[0]  # averaging, nothing kept
LEAST, CHANCE = 75.0, 50.0  # percent, of the two classes of the first task
LONG_ENOUGH = 12  # rounds
FINITE = "guard sums and means over nothing: a client may hold one image, one class, or nothing"


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
    ours, plain = trial.experiment(), trial.experiment({"method": PLAIN})
    for task in range(TASKS):
        for client in range(CLIENTS):
            if not np.array_equal(ours.scenario.samples(task, client), plain.scenario.samples(task, client)):
                raise Broken(f"client {client} has other images in task {task + 1} than with other methods")
    networks = (experiment.engine.network.backbone for experiment in (ours, plain))
    for a, b in zip(*(network.parameters() for network in networks), strict=True):
        if not torch.equal(a, b):
            raise Broken("the backbone starts from other weights than with other methods")


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
