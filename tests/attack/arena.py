"""A federation as users start it, by its commands and with keys, and programs that attack it over its sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.flower.chaos import simulated, toy
from engines.flower.federations import eventually
from fedfeat.config.config import Config
from fedfeat.engines.flower.addresses import free_port
from fedfeat.runs import deploy
from fedfeat.runs.folder import RunFolder
from toy_runs import weights

HERE = Path(__file__).parent


def fedfeat(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedfeat", *map(str, arguments)]


@dataclass
class Arena:
    """The folder of a federation with keys, and the processes that were started in it."""

    folder: Path
    config: Config
    clients: int
    stack: ExitStack
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program; its output is in NAME.txt, and it is stopped in the end."""
        with (self.folder / f"{name}.txt").open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **self.environment}
            )
        self.stack.callback(stop, process)
        return process

    def said(self, name: str) -> str:
        """Return the output of a program, its line breaks as spaces."""
        return " ".join((self.folder / f"{name}.txt").read_text(errors="replace").split())

    def server(self, *options: str) -> subprocess.Popen[bytes]:
        """Start ``fedfeat server``."""
        where = ("--keys", self.keys / "server", "--listen", self.address, "--out", self.run)
        return self.start("server", fedfeat("server", self.folder / "toy.toml", *where, *options))

    def client(self, number: int, *options: str | Path) -> subprocess.Popen[bytes]:
        """Start ``fedfeat client`` with one of the keys."""
        name = f"client-{number}"
        where = ("--keys", self.keys / "clients" / name, "--state", self.folder / name, "--client", str(number))
        what = ("--server", self.address, "--data", self.folder / "toy.npz", "--device", "cpu")
        return self.start(name, fedfeat("client", *what, *where, *options))

    def hostile_client(self, number: int, plan: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the program that spoils replies: by TASK.ROUND.OP, the name of what it does."""
        name, mine = f"client-{number}", self.keys / "clients" / f"client-{number}"
        settings = {
            "folder": str(self.folder / name / "state"),
            "name": name,
            "client": number,
            "data": str(self.folder / "toy.npz"),
            "device": "cpu",
            "server": self.address,
            "ca": str(mine / "ca.crt"),
            "key": str(mine / f"{name}.key"),
            "plan": dict(plan),
        }
        path = self.folder / f"{name}.plan.json"
        path.write_text(json.dumps(settings))
        return self.start(name, [sys.executable, str(HERE / "hostile_client.py"), str(path)])

    def events(self, kind: str = "round") -> list[dict[str, Any]]:
        return [e for e in RunFolder(self.run).events() if e["event"] == kind]

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the server's audit log about one kind of event; every line must be whole."""
        path = self.run / "audit.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == event]

    def wait_for_rounds(self, count: int, server: subprocess.Popen[bytes], seconds: float = 240) -> None:
        eventually(lambda: len(self.events()) >= count or server.poll() is not None, seconds, f"{count} rounds")
        assert server.poll() is None, self.said("server")

    def finish(self, server: subprocess.Popen[bytes], seconds: float = 600) -> dict[str, Any]:
        """Wait for the end of the run and return its result."""
        assert server.wait(seconds) == 0, self.said("server")
        return dict(json.loads((self.run / "result.json").read_text()))

    def equals_simulation(self, result: Mapping[str, Any]) -> bool:
        """Tell whether the run equals the simulation in which the same clients drop out of the same exchanges."""
        there = self.folder / "simulated"
        expected = simulated(deploy.federated(self.config), there, result["rounds_with_fewer_clients"])
        same = result["accuracy_matrix"] == expected["accuracy_matrix"]
        return same and weights(self.run) == weights(there)


@contextmanager
def arena(
    folder: Path, method: str, clients: int, environment: Mapping[str, str] | None = None, **changes: Any
) -> Iterator[Arena]:
    """Make data, a configuration and keys in a folder; whatever is started there is stopped in the end."""
    scenario = {"clients": clients, **changes.pop("scenario", {})}
    config = toy(folder, method, scenario=scenario, **changes)
    (folder / "toy.toml").write_text(config.to_toml())
    make = fedfeat("keys", "--out", folder / "keys", "--host", "localhost", "--clients", str(clients))
    subprocess.run(make, check=True, capture_output=True)
    with ExitStack() as stack:
        yield Arena(folder, config, clients, stack, environment or {})


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program as a service is ended."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
