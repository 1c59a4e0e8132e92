"""The processes of a federation: started offline under a guard, watched, stopped with everything they started.

    with SuperLink(folder) as link, SuperExec(folder, link), SuperNode(folder, "node-0", link.address):
        ...

A server is a SuperLink (messages, on the loopback interface), a SuperExec (runs the server app; separate, so that the
run survives a restart of the SuperLink) and a gateway (the only process that listens to the outside). A client is a
SuperNode, or a process of ours. Each writes ``NAME.log`` into its folder and is started again whenever it ends before
its time: a SuperNode that comes back too soon after a kill is refused by the SuperLink and ends, again and again,
until the old session has expired.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedfeat.core.audit import AUDIT
from fedfeat.core.errors import FedfeatError, MissingExtra
from fedfeat.core.files import private_folder
from fedfeat.engines.flower import guard
from fedfeat.engines.flower.addresses import LOOPBACK, free_port, is_healthy, join_address, need_free
from fedfeat.engines.flower.keys import Certificates

START_SECONDS = 90.0
STOP_SECONDS = 2 * guard.GRACE_SECONDS + 5.0


class ProcessError(FedfeatError):
    """A process of the federation that did not start or did not stay."""


def offline_environment(home: Path) -> dict[str, str]:
    """Return this environment with Flower's telemetry, update checks and installations switched off."""
    scripts = sysconfig.get_path("scripts")
    not_proxied = [name for name in (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost") if name]
    return {
        **os.environ,
        # Flower starts its helpers by name.
        "PATH": scripts + os.pathsep + os.environ.get("PATH", os.defpath),
        "NO_PROXY": ",".join(not_proxied),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


class Process:
    """One command kept running by a guard; leaving the context ends it and everything it started."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.folder, self.name, self.command = folder.absolute(), name, command
        self.log = self.folder / f"{name}.log"
        self._state_file = self.folder / f"{name}.state.json"
        self._environment = offline_environment(self.folder / "flwr")
        self._guard: subprocess.Popen[bytes] | None = None
        self._passed: tuple[int, ...] = ()  # file descriptors for the command

    def start(self) -> Self:
        """Start the command under its guard."""
        private_folder(self.folder)  # logs and messages are nobody else's business
        self._state_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(self._state_file), *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,
                pass_fds=self._passed,
            )
        return self

    def stop(self) -> None:
        """End the command and everything it started; harmless when it has ended already."""
        if self._guard is None:
            return
        running, self._guard = self._guard, None
        assert running.stdin is not None
        with contextlib.suppress(OSError):
            running.stdin.close()
        try:
            running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()

    def alive(self) -> bool:
        """Tell whether the guard is at work; the command itself may just be between two starts."""
        return self._guard is not None and self._guard.poll() is None

    def state(self) -> dict[str, Any]:
        """Return ``pid`` (0 between two starts), ``starts`` and ``last_exit`` of the command."""
        try:
            return dict(json.loads(self._state_file.read_text()))
        except FileNotFoundError:
            return {"pid": 0, "starts": 0, "last_exit": None}

    @property
    def pid(self) -> int:
        """The command's process id, 0 while it is not running."""
        return int(self.state()["pid"])

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def ready(self) -> bool:
        """Tell whether the process answers; one without an interface is ready when it runs."""
        return self.pid != 0

    def wait_ready(self, seconds: float = START_SECONDS) -> Self:
        """Wait until the process answers; an early end or too long a wait is an error with the end of its log."""
        limit = time.monotonic() + seconds
        while not self.ready():
            state = self.state()
            if state["last_exit"] is not None or not self.alive():
                raise ProcessError(f"{self.name} ended while starting; the end of {self.log}:\n{self.tail()}")
            if time.monotonic() > limit:
                raise ProcessError(f"{self.name} did not answer within {seconds:g} s; see {self.log}\n{self.tail()}")
            time.sleep(0.05)
        return self

    def __enter__(self) -> Self:
        try:
            return self.start().wait_ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


def flower_command(name: str) -> list[str]:
    """Return the command of one of Flower's programs."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise MissingExtra("flwr", "flower", "a federation across processes")
    return [found]


class ListeningProcess(Process):
    """A process that serves an address; without a port it takes a free one."""

    def __init__(
        self, folder: Path, name: str, command: list[str], address: tuple[str, int], ca: Path | None = None
    ) -> None:
        super().__init__(folder, name, command)
        (self.host, self.port), self.ca = address, ca

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return join_address(self.host, self.port)

    def start(self) -> Self:
        """Start it, unless its port is taken."""
        need_free(self.host, self.port)
        return super().start()

    def ready(self) -> bool:
        """Tell whether it answers."""
        return self.pid != 0 and is_healthy(self.host, self.port, self.ca)


class SuperLink(ListeningProcess):
    """Carries messages between server and clients; keeps its state in a database, so that a restart loses nothing.

    Without a database large messages cost half as much, and a restart loses the run: the server starts it anew.
    With certificates it speaks TLS and accepts only clients whose keys are registered. Its control and runtime
    interfaces know no login, so it belongs on the loopback interface, behind a gateway; on Linux it also looks whose
    account asks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        tls: Certificates | None = None,
        database: bool = True,
    ) -> None:
        self.tls, port = tls, port or free_port(host)
        command = [sys.executable, "-m", "fedfeat.engines.flower.superlink", "--host", host, "--port", str(port)]
        command += ["--isolation", "process"]
        command += ["--database", str(folder.absolute() / "superlink.db")] if database else []
        command += ["--disable-runtime-dependency-installation"]
        if tls is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(tls.ca.absolute()), "--ssl-certfile", str(tls.certificate.absolute())]
            command += ["--ssl-keyfile", str(tls.key.absolute()), "--enable-supernode-auth"]
        super().__init__(folder, "superlink", command, (host, port), None if tls is None else tls.ca)


class SuperExec(Process):
    """Starts the server app of each run, as a child of its own rather than of the SuperLink."""

    def __init__(self, folder: Path, link: SuperLink) -> None:
        command = [*flower_command("flower-superexec"), "--runtime-api-address", link.address, *_trusted(link.ca)]
        super().__init__(folder, "superexec", command)


class SuperNode(ListeningProcess):
    """Flower's client: pulls messages, starts an interpreter for each to answer it, pushes the replies.

    It is ready when its local interface answers; whether the server let it in is the server's to say.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        server: str,
        *,
        ca: Path | None = None,
        key: Path | None = None,
        config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        port = free_port()
        command = [*flower_command("flower-supernode"), "--superlink", server, "--isolation", "subprocess"]
        command += ["--host", LOOPBACK, "--port", str(port), *_trusted(ca)]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key.absolute())]
        if config:
            command += ["--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())]
        super().__init__(folder, name, command, (LOOPBACK, port))


class GatewayProcess(ListeningProcess):
    """The only process that listens to the outside: TLS, and nothing but the paths that SuperNodes need.

    Refusals go to the audit log of the run, whose folder is above this one.

    :param listening: descriptor of a socket that listens at the address already, outside of this process's network.
    """

    def __init__(
        self, folder: Path, link: SuperLink, *, host: str, port: int = 0, listening: int | None = None
    ) -> None:
        if link.tls is None:
            raise ProcessError("a gateway needs certificates: start the SuperLink with tls, or run without a gateway")
        port = port or free_port(host)
        command = [sys.executable, "-m", "fedfeat.engines.flower.gateway", "--listen", join_address(host, port)]
        command += ["--superlink", link.address, "--ca", str(link.tls.ca.absolute())]
        command += ["--certificate", str(link.tls.certificate.absolute()), "--key", str(link.tls.key.absolute())]
        command += ["--clients", str(link.tls.key.absolute().with_name("clients"))]
        command += ["--audit", str(folder.absolute().parent / AUDIT)]
        command += [] if listening is None else ["--descriptor", str(listening)]
        super().__init__(folder, "gateway", command, (host, port), link.tls.ca)
        self._passed = () if listening is None else (listening,)

    def start(self) -> Self:
        """Start it, unless its port is taken by somebody else."""
        return Process.start(self) if self._passed else super().start()

    def ready(self) -> bool:
        """Tell whether it accepts connections."""
        if not self.pid or self._passed:
            return bool(self.pid)  # from here a socket in another network cannot be tried
        # Bound to every interface it is reached over the loopback one.
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        with contextlib.suppress(OSError), socket.create_connection((host, self.port), timeout=2.0):
            return True
        return False


def _trusted(ca: Path | None) -> list[str]:
    return ["--insecure"] if ca is None else ["--root-certificates", str(ca.absolute())]
