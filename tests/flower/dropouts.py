"""A federation in this process whose replies can be spoilt, and the same in simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from local_grid import NODE

from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.codec import pack, unpack
from fedfeat.engines.flower.messages import from_records, to_records
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, Result, start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, untimed, write_toy

QUICK = {"deadline": 0.2, "wait": 0.5, "poll": 0.01}
VICTIM = 1  # of three clients; its node is in the middle too
Change = Callable[[dict[str, Any]], dict[str, Any]]


def config_for(tmp_path: Path, method: str = "fedcbdr+feat", **federation: float) -> Any:
    path = write_toy(tmp_path / "toy.npz")
    changes = {"data": {"path": str(path)}, "federation": {**QUICK, **federation}}
    return toy_config(method, engine={"name": "flower"}, **changes)


def with_payload(reply: Message, change: Change) -> Message:
    header, packed = from_records(reply.content)
    reply.content = to_records(header, pack(change(unpack(packed))))
    return reply


def once_in(round: int, task: int, spoil: Callable[[Message], Message | Error | None]) -> Any:
    """Return a fault that strikes one client's training in one round."""
    seen = {"trains": 0}

    def fault(node: int, reply: Message) -> Message | Error | None:
        if node != NODE + VICTIM:
            return reply
        packed = from_records(reply.content)[1]
        seen["trains"] += "weights" in unpack(packed)
        return spoil(reply) if "weights" in unpack(packed) and seen["trains"] == task * 2 + round + 1 else reply

    return fault


def in_process_without(
    tmp_path: Path, task: int, round: int, fate: Any, reason: str, method: str = "fedcbdr+feat"
) -> tuple[Result, bytes]:
    """Run the same experiment in process, with the same client lost in the same round."""
    experiment = Experiment(toy_config(method, data={"path": str(tmp_path / "toy.npz")}))
    engine, ask = experiment.engine, experiment.engine.ask

    def unreliable(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        struck = op == "train" and (engine.task, engine.round) == (task, round)
        for client in sorted(requests):
            if struck and client == VICTIM:
                yield client, Lost(fate, reason)
            else:
                yield from ask(op, {client: requests[client]})

    engine.ask = unreliable  # type: ignore[method-assign]
    progress = Progress()
    result = experiment.run(RunFolder.create(tmp_path / "reference", experiment.config, {}), progress, ())
    return result, progress.weights.numpy().tobytes()


def uninterrupted(tmp_path: Path, method: str) -> tuple[Result, bytes]:
    here = toy_config(method, data={"path": str(tmp_path / "toy.npz")})
    result = start(here, tmp_path / "uninterrupted")
    loaded = RunFolder.open(tmp_path / "uninterrupted").checkpoints.load()
    assert loaded is not None
    return result, loaded[0].weights.numpy().tobytes()


def same_outcome(folder: Path, result: Result, expected: tuple[Result, bytes]) -> bool:
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    plain = [{k: v for k, v in untimed(r).items() if k != "config"} for r in (result, expected[0])]
    return plain[0] == plain[1] and loaded[0].weights.numpy().tobytes() == expected[1]
