"""Promises about what crosses between clients and server, and about what clients keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from fedfeat.algorithm.client import EXEMPLARS
from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload, value_bytes
from fedfeat.runs.contract.problem import BUDGET, CLIENTS, TASKS
from fedfeat.runs.contract.promise import Broken, promise
from fedfeat.runs.contract.trial import Trial


@promise("own samples", "a client looks at its own samples only, and sends none")
def own_samples(trial: Trial) -> None:
    """Check every index that a client read."""
    observed, run = trial.observed
    for client, looked in observed.images.looked.items():
        own = {int(i) for task in range(TASKS) for i in run.experiment.scenario.samples(task, client)}
        if not looked <= own:
            raise Broken(
                f"client {client} looked at {len(looked - own)} samples of others", "use client.samples and exemplars"
            )
    for answer in observed.answers:
        if answer.images is not None:
            where = trial.source.of_text(answer.images)
            raise Broken(f"{answer.images!r} has the shape of images", "images stay on their client", where)


@promise("sends", "what leaves a client is declared: names, shapes and ranges")
def sends(trial: Trial) -> None:
    """Screen every reply as a federation would, and look for declarations that nothing answers to."""
    observed, _ = trial.observed
    for answer in observed.answers:
        if answer.fault is not None:
            name = answer.fault.partition(":")[0]
            known = name in trial.built.sends
            declare = f'declare it: sends=(Sent("up/{answer.op}/{name}", "what it is"),) in @base or @addon'
            raise Broken(
                f"a federation would refuse client {answer.client}'s answer to {answer.op!r} in task "
                f"{answer.task + 1}: {answer.fault}",
                "send what is declared, or declare what is sent" if known else f"{declare}, with its shape",
                trial.source.of_text(name) or _operation(trial, answer.op),
            )
    sent = {name for answer in observed.answers for name in answer.entries}
    for name, declared in trial.built.sends.items():
        if name not in sent:
            raise Broken(
                f"{declared.entry!r} is declared and never sent", "send it, or leave it out", trial.source.of_text(name)
            )


@promise("bytes", "every byte is counted")
def counted(trial: Trial) -> None:
    """Compare the record of a run with the sizes of its models and replies."""
    observed, run = trial.observed
    traffic, engine = run.result["traffic"], trial.experiment().engine
    expected = sum(value_bytes(engine.begin_task(task)) * trial.rounds * CLIENTS for task in range(TASKS))
    for entry in ("up/train/weights", "down/train/weights"):
        if (found := traffic.get(entry, 0)) != expected:
            raise Broken(f"{entry} has {found} bytes, and the models have {expected}", "send whole models")
    up, down = (sum(v for k, v in traffic.items() if k.startswith(f"{way}/")) for way in ("up", "down"))
    in_rounds = sum(event["bytes_up"] for event in run.history if event["event"] == "round")
    for what, crossed, told in (
        ("in all replies", sum(answer.bytes for answer in observed.answers), up),
        ("up", up, run.result["bytes_up"]),
        ("down", down, run.result["bytes_down"]),
        ("up in rounds", sum(v for k, v in traffic.items() if k.startswith("up/train/")), in_rounds),
    ):
        if crossed != told:
            raise Broken(f"{crossed} bytes crossed {what}, and {told} are counted", "ask through the exchange")


@promise("budget", "exemplars are the client's own, of earlier tasks, each once, and within the budget")
def budget(trial: Trial) -> None:
    """Check the number after every task, and the last ones in detail."""
    _, run = trial.observed
    replay = run.experiment.method.replay
    where = next((w for op in replay.ops().values() if (w := trial.source.of_function(op))), None) if replay else None
    for task, event in enumerate(e for e in run.history if e["event"] == "task"):
        allowed = BUDGET * min(task + 1, TASKS - 1) if replay else 0
        if event["exemplars"] > allowed and not run.experiment.method.keeps_everything:
            raise Broken(
                f"clients keep {event['exemplars']} exemplars after task {task + 1}, and the budget allows {allowed}",
                "keep at most request['quota'] images of a task on each client",
                where,
            )
    for client, state in run.experiment.engine.states.items():
        kept = state.get(EXEMPLARS)
        if isinstance(kept, Tensor):
            own = {int(i) for task in range(TASKS - 1) for i in run.experiment.scenario.samples(task, client)}
            if not set(kept.tolist()) <= own:
                raise Broken(f"client {client} keeps samples that it never had", "choose from client.samples", where)
            if len(set(kept.tolist())) != len(kept):
                raise Broken(f"client {client} keeps an exemplar twice", "choose each sample once", where)


@promise("drop-outs", "a client that drops out is left out, and the run goes on")
def drop_outs(trial: Trial) -> None:
    """Let client 0 miss every first round, and client 1 fail in every later one and at every task's end."""
    experiment = trial.experiment()
    engine = experiment.engine
    ask = engine.ask

    def unreliable(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        lost = {0: Lost("missing", "asleep")} if (op, engine.round) == ("train", 0) else {1: Lost("failed", "broken")}
        yield from ((k, v) for k, v in lost.items() if k in requests)
        yield from ask(op, {k: v for k, v in requests.items() if k not in lost})

    engine.ask = unreliable  # type: ignore[method-assign]
    run = trial.finish(experiment)
    rounds = [event for event in run.history if event["event"] == "round"]
    said = [(e["clients"], e["replied"], e["missing"], e["failed"]) for e in rounds]
    if said != [(CLIENTS, 2, {"0": "asleep"}, {}), (CLIENTS, 2, {}, {"1": "broken"})][: trial.rounds] * TASKS:
        raise Broken(f"the record does not say who dropped out: {said}")
    fewer = run.result["rounds_with_fewer_clients"]
    trained = [(f["task"], f["round"]) for f in fewer if f["op"] == "train"]
    if trained != [(t + 1, r + 1) for t in range(TASKS) for r in range(trial.rounds)]:
        raise Broken(f"the result names other rounds with fewer clients: {trained}")
    if any(f["failed"] != {"1": "broken"} for f in fewer if f["op"] != "train"):
        raise Broken("the result does not say who dropped out at the end of a task")
    if experiment.method.replay is not None and EXEMPLARS in engine.states.get(1, {}):
        raise Broken(
            "client 1 dropped out of every choice of exemplars, and keeps some", "clients keep, not the server"
        )


def _operation(trial: Trial, op: str) -> str | None:
    found = trial.built.ops().get(op)
    return None if found is None else trial.source.of_function(found)
