"""Promises about other streams of images: late ones, clients that leave or lag, domains."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedfeat.config.config import Config
from fedfeat.config.plugins import forget
from fedfeat.data import DataSettings
from fedfeat.federation.progress import Progress
from fedfeat.runs.contract.compare import difference
from fedfeat.runs.contract.observed import Observed
from fedfeat.runs.contract.promise import Broken, NotApplicable, promise
from fedfeat.runs.contract.trial import NONE, Interrupted, Trial, interrupting
from fedfeat.runs.experiment import Experiment, resume, start

FOLLOW = "count old classes with client.num_old, those of the previous model with client.global_seen.num_before"
REFUSE = "or declare Method.refuses with a reason"
NEEDED = ("resume", "sends")


@promise("blurry", "late images of old classes are followed or refused, and such a run resumes exactly", needs=NEEDED)
def blurry(trial: Trial) -> None:
    """Let a third of every class's images come late."""
    _follow(trial, "blurry", {"blurry": 0.34})


@promise(
    "pace",
    "clients that leave and clients that lag are followed or refused, and such a run resumes exactly",
    needs=NEEDED,
)
def pace(trial: Trial) -> None:
    """Let one client lag by a task, and another leave before the last."""
    _follow(trial, "lag", {"lag": {"1": 1}, "leaves": {"2": 3}})


@promise("domains", "tasks that bring domains are followed or refused, and such a run resumes exactly", needs=NEEDED)
def domains(trial: Trial) -> None:
    """Run on the digits, which come in four domains."""
    digits = DataSettings(name="digits-domains")
    _follow(trial, "domains", {"brings": "domains", "tasks": 4}, {"batch": 32}, digits)


def _follow(
    trial: Trial,
    stream: str,
    scenario: Mapping[str, Any],
    train: Mapping[str, int] = NONE,
    data: DataSettings | None = None,
) -> None:
    """Run whole, with open eyes, and once more with a stop in the last task; both must end alike."""
    reason = trial.built.refusal(stream)
    if reason is not None:
        raise NotApplicable(reason)
    config = trial.config({"scenario": scenario, "train": {"local_epochs": 1, **train}})
    config = config if data is None else config.model_copy(update={"data": data})
    whole, stopped = trial.new_folder(), trial.new_folder()
    experiment = Experiment(config)
    observed = Observed(experiment)
    experiment.run(experiment.new_folder(whole), Progress(), ())
    for answer in observed.answers:
        if answer.fault is not None:
            told = f"client {answer.client} answers {answer.op!r} in task {answer.task + 1} with {answer.fault}"
            raise Broken(told, f"{FOLLOW}, {REFUSE}")
    with suppress(Interrupted):
        start(config, stopped, (interrupting(_in_last_task(config, trial.rounds)),))
    forget()
    resume(stopped)
    if (parted := difference(whole, stopped)) is not None:
        raise Broken(f"stopped in the last task and resumed, the run goes another way: {parted}", FOLLOW)


def _in_last_task(config: Config, rounds: int) -> int:
    """Return the number of an event after the last task has begun."""
    return (config.scenario.tasks - 1) * (rounds + 1) + max(rounds, 1)
