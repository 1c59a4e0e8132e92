"""A federation of real processes that can be hurt, and the simulation in which the same clients drop out."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.algorithm.engine import Lost
from fedfeat.config.config import Config
from fedfeat.core.payload import Payload
from fedfeat.engines.flower import keys
from fedfeat.engines.flower.processes import Process
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.progress import Progress
from fedfeat.runs import deploy
from fedfeat.runs.experiment import Experiment, Result
from fedfeat.runs.folder import RunFolder
from toy import toy_config, write_toy

CLIENTS = 3

# Loaded by one client as a plugin of its own: what it does to a request instead of answering it as it should.
FAULT = '''
import json
import time
from pathlib import Path

import torch

from fedfeat.engines.flower import client
from fedfeat.algorithm.registry import addon

FAULTS = json.loads("""{faults}""")
FOLDER = Path("{folder}")
answer_properly = client.ClientRun.run_op


@addon("hurt-{name}")
def hurt(method, settings):
    """Nothing: a plugin has to register something."""
    return method


def answer(self, header, request):
    place = f"{{header['task'] + 1}}.{{header['round'] + 1}}.{{header['op']}}"
    fault = FAULTS.get(place)
    if fault == "raise":
        raise RuntimeError("out of memory")
    if fault == "hang":
        marker = FOLDER / f"inside-{{place}}"
        if not marker.exists():
            marker.touch()
            time.sleep(1000)
    if isinstance(fault, float):
        (FOLDER / f"inside-{{place}}").touch()
        time.sleep(fault)
    reply, state = answer_properly(self, header, request)
    if fault == "nan":
        reply = {{**reply, "weights": torch.full_like(reply["weights"], torch.nan)}}
    return reply, state


client.ClientRun.run_op = answer
'''


def toy(folder: Path, method: str, **changes: Any) -> Config:
    """Return the toy experiment, with its data in a folder."""
    data = folder / "toy.npz"
    if not data.exists():
        write_toy(data)
    return toy_config(method, data={"path": str(data)}, **changes)


@dataclass
class Hurt:
    """A federation at work in which something will go wrong."""

    config: Config
    folder: Path  # of its processes
    run_folder: Path  # holds the folder of the run
    server: deploy.Server
    clients: list[Process]

    def run(self) -> Result:
        """Run the experiment to its end."""
        return self.server.run(deploy.prepare_run(self.config, self.run_folder / "run"))

    def marker(self, client: int, place: str) -> Path:
        """Return the file that a client touches when it hangs or sleeps at a place."""
        return self.folder / f"client-{client}" / f"inside-{place}"


@contextmanager
def hurt_federation(
    config: Config,
    folder: Path,
    faults: Mapping[int, Mapping[str, Any]],
    *,
    secure: bool = False,
    database: bool = True,
) -> Iterator[Hurt]:
    """Start a server and clients, some of them with faults: by client, by ``TASK.ROUND.OP``."""
    config = deploy.federated(config)
    names = [f"client-{k}" for k in range(CLIENTS)]
    if secure:
        keys.make_keys(folder / "keys", ["localhost"], names)
    with ExitStack() as stack:
        mine = keys.read_server_keys(folder / "keys" / "server") if secure else None
        server = stack.enter_context(deploy.server(folder / "server", keys=mine, database=database))
        clients = []
        for k, name in enumerate(names):
            home = folder / name
            home.mkdir(exist_ok=True)
            options: dict[str, Any] = {"client": k, "data": str(config.data.path), "device": "cpu"}
            if k in faults:
                plan = json.dumps(dict(faults[k]))
                (home / "fault.py").write_text(FAULT.format(faults=plan, folder=home, name=name))
                options["plugins"] = str(home / "fault.py")
            theirs = keys.read_client_keys(folder / "keys" / "clients" / name) if secure else None
            clients.append(stack.enter_context(deploy.client(home, name, server.address, options, keys=theirs)))
        yield Hurt(config, folder, folder, server, clients)


class Dropping(InProcessEngine):
    """The simulator, in which given clients drop out of given exchanges."""

    lost: Mapping[tuple[int, int, str], set[int]] = {}

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        gone = self.lost.get((self.task + 1, self.round + 1, op), set())
        for client in sorted(requests):
            if client in gone:
                yield client, Lost("missing", "dropped")
            else:
                yield from super().ask(op, {client: requests[client]})


def simulated(config: Config, folder: Path, shortfalls: list[dict[str, Any]]) -> Result:
    """Run the same experiment in process, with the drop-outs that a federation recorded."""
    lost = {(s["task"], s["round"], s["op"]): {int(k) for k in (*s["failed"], *s["missing"])} for s in shortfalls}

    def engine(*parts: Any) -> Dropping:
        made = Dropping(*parts)
        made.lost = lost
        return made

    plain = config.model_copy(update={"engine": config.engine.model_copy(update={"name": "inprocess"})})
    experiment = Experiment(plain, engine=engine)
    run = RunFolder.create(folder, plain, experiment.scenario.to_json(experiment.dataset.class_names))
    return experiment.run(run, Progress(), ())


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
