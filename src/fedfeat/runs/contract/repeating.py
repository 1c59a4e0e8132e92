"""Promises about runs that should be the same: again, resumed, with clients in another order, and with another seed."""

from __future__ import annotations

from contextlib import suppress

import torch

from fedfeat.config.plugins import forget
from fedfeat.runs.contract.both_ways import AtOnce, Backwards
from fedfeat.runs.contract.compare import difference, first_difference
from fedfeat.runs.contract.hidden import drawing_line, remembered
from fedfeat.runs.contract.promise import Broken, promise
from fedfeat.runs.contract.trial import Interrupted, Trial, history, interrupting
from fedfeat.runs.experiment import resume, start

ADDRESSED = "take random numbers from rng_at(seed, purpose, task, round, client)"
KEEP = "keep it in client.state on a client, in server.progress.numbers or server.progress.tensors on the server"


@promise("random", "random numbers have an address: the generators that a process shares decide nothing")
def random(trial: Trial) -> None:
    """Set the generators of torch, NumPy and Python otherwise; if that matters, find the line that draws."""
    told = difference(trial.reference.folder, trial.second.folder)
    if told is not None and difference(trial.reference.folder, trial.run().folder) is None:
        line = drawing_line(trial.source, trial.run)
        raise Broken(f"with the global generators of torch, NumPy and Python set otherwise, {told}", ADDRESSED, line)


@promise("again", "the same run twice has the same bytes", needs=("runs", "random"))
def again(trial: Trial) -> None:
    """Compare with a second run."""
    told = difference(trial.reference.folder, trial.second.folder)
    if told is not None:
        raise _broken(trial, f"a second run goes another way: {told}", f"{ADDRESSED}; let nothing outlive a run")


@promise("resume", "a run that is killed after any round or task and resumed has the same bytes", needs=("again",))
def resumes(trial: Trial) -> None:
    """Let every process end one round or task and die in the next, so each checkpoint is resumed from."""
    folder = trial.new_folder()
    with suppress(Interrupted):
        start(trial.config(), folder, (interrupting(2),))
    expected = trial.reference.history
    told, stops = None, len(expected) - 2  # the first event is the start; nothing follows the last
    while told is None and stops:
        forget()
        with suppress(Interrupted):
            resume(folder, (interrupting(2),))
        found = history(folder)
        told, stops = first_difference(expected[: len(found)], found), stops - 1
    told = told or difference(trial.reference.folder, folder)
    if told is not None:
        raise _broken(trial, f"killed and resumed after every round and task, the run goes another way: {told}", KEEP)


@promise("client order", "the order in which clients train changes nothing", needs=("again",))
def client_order(trial: Trial) -> None:
    """Ask them from the last to the first."""
    told = difference(trial.reference.folder, trial.run(factory=Backwards).folder)
    if told is not None:
        raise _broken(trial, f"with clients asked from the last to the first, {told}", f"clients share nothing; {KEEP}")


@promise(
    "by address", "a choice of exemplars that says it can wait is the same when it is made later", needs=("again",)
)
def by_address(trial: Trial) -> None:
    """Let clients choose at once, where the other runs let them choose when they take part again."""
    steps = [step for step in trial.built.task_end_steps() if getattr(step, "by_address", False)]
    told = difference(trial.run(factory=AtOnce).folder, trial.second.folder) if steps else None
    if told is not None:
        ops = (op for step in steps for op in step.ops().values())
        line = next((where for op in ops if (where := trial.source.of_function(op))), None)
        advice = "keep quota samples, drawn from client.seed, client.task and client.id alone, or leave by_address out"
        raise Broken(f"with exemplars that are chosen when a client takes part again, {told}", advice, line)


@promise("seed", "another seed gives other losses in every round")
def seeds(trial: Trial) -> None:
    """Run into the second task, with another seed; without rounds to the end."""
    if trial.rounds == 0:
        if torch.equal(trial.run({"seed": 8}).progress.weights, trial.reference.progress.weights):
            raise Broken("the final weights are those of seed 7", ADDRESSED)
        return
    folder = trial.new_folder()
    with suppress(Interrupted):
        start(trial.config({"seed": 8}), folder, (interrupting(4),))
    found = [event for event in history(folder) if event["event"] == "round"]
    expected = [event for event in trial.reference.history if event["event"] == "round"]
    for ours, theirs in zip(found, expected, strict=False):
        if ours["losses"] == theirs["losses"]:
            raise Broken(f"in task {ours['task']}, round {ours['round']} the losses are those of seed 7", ADDRESSED)


def _broken(trial: Trial, told: str, do: str) -> Broken:
    found = remembered(trial)
    return Broken(told, do) if found is None else Broken(f"{told}; {found[0]}", do, found[1])
