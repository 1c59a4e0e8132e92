"""A server that does harm: a real SuperLink with an app of its own, which asks a client for what it should not give.

    python hostile_server.py FOLDER PORT

It waits for one client, asks it everything in `questions`, and writes what came back to FOLDER/answers.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from engines.flower.own_images import own_config
from fedfeat.algorithm.engine import Lost
from fedfeat.config.config import Config
from fedfeat.engines.flower.app import app_files
from fedfeat.engines.flower.codec import Packed, pack
from fedfeat.engines.flower.control import Control
from fedfeat.engines.flower.messages import ASK, HELLO, PROTOCOL, Channel, Header, Request, config_to_send
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.runs import deploy
from fedfeat.runs.experiment import Experiment

FORGED = "ok\n2026-01-01 00:00:00 all is well\r\x1b[2J\u202e"
SHIM = "from attack.hostile_server import app\n\n__all__ = ['app']\n"
RUN = "r1"
TESTS = Path(__file__).resolve().parents[1]
app = ServerApp()
Question = tuple[str, str, Header, Packed | None]  # what it is called, its kind, and what is sent


def agreed_config() -> Config:
    """Return the configuration that the client's policy allows."""
    private = {"model": {"norm": "group"}, "privacy": {"clip": 1.0, "noise": 0.5}}
    return own_config("finetune", train={"rounds": 6}, **private)


def questions(plugin: str) -> Iterator[Question]:
    """Yield all that is asked, in order.

    :param plugin: a file on the client's machine that leaves a mark when it is run.
    """
    config = agreed_config()
    table = config_to_send(config)
    model = Experiment(config, engine=InProcessEngine).engine.begin_task(0)

    def hello(name: str, /, protocol: int = PROTOCOL, run: str = RUN, rollbacks: Any = (), **changes: Any) -> Question:
        greeting = {"protocol": protocol, "run": run, "config": {**table, **changes}, "rollbacks": list(rollbacks)}
        return name, HELLO, greeting, None

    def ask(name: str, /, shift: float = 0.0, weights: torch.Tensor = model, **changes: Any) -> Question:
        place = {"run": RUN, "op": "train", "task": 0, "round": 0, "client": 0, "generation": 0}
        return name, ASK, {**place, **changes}, pack({"weights": weights + shift})

    yield hello("another protocol", protocol=99)
    yield hello("a plugin of the server's choice", plugins=[plugin])
    yield hello("a plugin, as rubbish", plugins=["\n" * 10**6])
    yield hello("data called public", data={"name": "folder"}, scenario={"tasks": 2, "clients": 3})
    yield hello("no clipping, no noise", privacy={})
    yield hello("less noise", privacy={"clip": 1.0, "noise": 0.1})
    yield hello("another method", method="herding")
    yield hello("a run called ../../x", run="../../x")
    yield hello("a run with a forged log line as its name", run=FORGED)
    yield ask("a question before hello")
    yield hello("honest hello")
    yield hello("second hello without noise", privacy={})
    yield hello("second hello with more rounds", train={**table["train"], "rounds": 1000})
    yield ask("honest question")
    yield ask("the same question again")
    for number in range(20):
        yield ask("the same round with other weights", shift=1e-6 * (number + 1))
    yield ask("another client's id", client=1, round=1)
    yield ask("a task that is not there", task=7)
    yield ask("round -1", round=-1)
    yield ask("round 99", round=99)
    yield ask("task as text", task="0")
    yield ask("an operation that is not allowed", op="evaluate", round=1)
    yield ask("an operation with a forged log line as its name", op=FORGED, round=1)
    yield ask("an operation with a name of 3 MB", op="x" * 3_000_000, round=1)
    yield ask("another run", run="r2")
    yield ask("weights of another shape", weights=model[:-1], round=1)
    yield ("a request that cannot be read", ASK, {"run": RUN}, Packed("[[", {}))
    yield ("a message of another kind", "steal", {"run": RUN}, None)
    yield ask("honest question of round 2", round=1)
    yield ask("honest question of round 3", round=2)
    yield ask("honest question of round 4", round=3)
    yield hello("a rollback without permission", rollbacks=["1:1"])
    yield ask("an earlier round, without a word", shift=1e-3)
    yield hello("rollbacks, as rubbish", rollbacks=[{"a": 1}, None])


@app.main()
def main_of_app(grid: Grid, context: Context) -> None:
    """Ask everything, and write down every answer."""
    folder = Path(str(context.run_config["folder"]))
    channel, found = Channel(grid, 0.05), []
    while not (nodes := channel.nodes()):
        time.sleep(0.2)
    node = next(iter(nodes))
    for name, kind, header, payload in questions((folder / "plugin.txt").read_text()):
        ((_, answer),) = channel.send(kind, {0: Request(node, header, payload)}, 60.0)
        if isinstance(answer, Lost):
            found.append({"name": name, "lost": answer.reason})
        else:
            size = sum(map(len, answer.payload.buffers.values()))
            found.append({"name": name, "told": answer.header, "bytes": size, "digest": answer.payload.digest()})
    (folder / "answers.json").write_text(json.dumps(found))


def main() -> None:
    """Serve until the questions are answered."""
    folder, port = Path(sys.argv[1]).absolute(), int(sys.argv[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    with deploy.server(folder / "server", port=port) as server, Control(server.link.address) as control:
        run = control.start({**app_files(), "fedfeat_server.py": SHIM.encode()}, {"folder": str(folder)})
        while not control.status(run).finished:
            time.sleep(0.5)
        print(control.status(run), flush=True)


if __name__ == "__main__":
    main()
