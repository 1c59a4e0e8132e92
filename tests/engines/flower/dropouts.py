"""A federation in this process whose replies can be spoilt, and the same in simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.codec import pack, unpack
from fedfeat.engines.flower.messages import from_records, to_records
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, Result, start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, untimed, write_toy
from toy_runs import weights

QUICK = {"deadline": 0.2, "wait": 0.5, "poll": 0.01}
VICTIM = 1  # of three clients; its node is in the middle too
Change = Callable[[dict[str, Any]], dict[str, Any]]


def config_for(
    tmp_path: Path, method: str = "fedcbdr+feat", changes: Mapping[str, Any] | None = None, **federation: float
) -> Any:
    write_toy(tmp_path / "toy.npz")
    settings = {**small(tmp_path), **(changes or {}), "federation": {**QUICK, **federation}}
    return toy_config(method, engine={"name": "flower"}, **settings)


def small(tmp_path: Path) -> dict[str, Any]:
    """Two tasks on the toy data of a folder."""
    return {"data": {"path": str(tmp_path / "toy.npz")}, "scenario": {"tasks": 2}}


def with_payload(reply: Message, change: Change) -> Message:
    header, packed = from_records(reply.content)
    reply.content = to_records(header, pack(change(unpack(packed))))
    return reply


def in_process_without(
    tmp_path: Path, lost: Mapping[tuple[int, int], Lost], method: str = "fedcbdr+feat", **changes: Any
) -> tuple[Result, bytes]:
    """Run the same experiment in process, with one client lost from training by task and round."""
    experiment = Experiment(toy_config(method, **{**small(tmp_path), **changes}))
    engine, ask = experiment.engine, experiment.engine.ask

    def unreliable(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        struck = lost.get((engine.task, engine.round)) if op == "train" else None
        for client in sorted(requests):
            if struck is not None and client == VICTIM:
                yield client, struck
            else:
                yield from ask(op, {client: requests[client]})

    engine.ask = unreliable  # type: ignore[method-assign]
    progress = Progress()
    result = experiment.run(RunFolder.create(tmp_path / "reference", experiment.config, {}), progress, ())
    return result, progress.weights.numpy().tobytes()


def uninterrupted(tmp_path: Path, method: str) -> tuple[Result, bytes]:
    result = start(toy_config(method, **small(tmp_path)), tmp_path / "uninterrupted")
    return result, weights(tmp_path / "uninterrupted")


def same_outcome(folder: Path, result: Result, expected: tuple[Result, bytes]) -> bool:
    plain = [{k: v for k, v in untimed(r).items() if k != "config"} for r in (result, expected[0])]
    return plain[0] == plain[1] and weights(folder) == expected[1]
