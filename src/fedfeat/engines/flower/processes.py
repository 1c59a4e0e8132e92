"""Flower's long-running processes: started offline, watched by a guard, stopped with everything they started.

    with SuperLink(folder) as link, SuperExec(folder, link), SuperNode(folder, "node-0", link.address):
        ...

A server is a SuperLink (messages, on the loopback interface), a SuperExec (runs the server app; separate, so that the
run survives a restart of the SuperLink) and a Gateway (the one door to the outside). A client is a SuperNode. Each
writes ``NAME.log`` into its folder and is started again whenever it ends before its time: a SuperNode that comes back
too soon after a kill is refused by the SuperLink and ends, again and again, until the old session has expired.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from fedfeat.core.errors import MissingExtra
from fedfeat.engines.flower.addresses import LOOPBACK, answers, free_port, join_address, need_free
from fedfeat.engines.flower.supervise import Process, ProcessError

__all__ = ["LOOPBACK", "Certificates", "Gateway", "Process", "ProcessError", "SuperExec", "SuperLink", "SuperNode"]
Isolation = Literal["subprocess", "process"]


@dataclass(frozen=True)
class Certificates:
    """What a server needs for TLS: the authority that clients trust, its own certificate and private key."""

    ca: Path
    certificate: Path
    key: Path


def flower_command(name: str) -> str:
    """Return the path of one of Flower's programs."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise MissingExtra("flwr", "flower", "a federation across processes")
    return found


class SuperLink(Process):
    """Carries messages between server and clients; keeps its state in a database, so that a restart loses nothing.

    Without a database large messages cost half as much, and a restart loses the run: the server starts it anew.
    With certificates it speaks TLS and accepts only clients whose keys are registered. Its control and runtime
    interfaces are open to whoever reaches the port, so it belongs on the loopback interface, behind a `Gateway`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        tls: Certificates | None = None,
        database: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.host, self.port, self.tls = host, port or free_port(host), tls
        command = [flower_command("flower-superlink"), "--host", host, "--port", str(self.port)]
        command += ["--isolation", "process"]
        command += ["--database", str(folder.absolute() / "superlink.db")] if database else []
        command += ["--disable-runtime-dependency-installation"]
        if tls is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(tls.ca.absolute()), "--ssl-certfile", str(tls.certificate.absolute())]
            command += ["--ssl-keyfile", str(tls.key.absolute()), "--enable-supernode-auth"]
        super().__init__(folder, "superlink", command, environment=environment)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return join_address(self.host, self.port)

    @property
    def ca(self) -> Path | None:
        """The authority to trust when talking to it; None without TLS."""
        return None if self.tls is None else self.tls.ca

    def start(self) -> Self:
        """Start it, unless its port is taken."""
        need_free(self.host, self.port)
        return super().start()

    def ready(self) -> bool:
        """Tell whether it answers."""
        return self.pid != 0 and answers(self.host, self.port, self.ca)


class SuperExec(Process):
    """Starts the server app of each run, as a child of its own rather than of the SuperLink."""

    def __init__(self, folder: Path, link: SuperLink, *, environment: Mapping[str, str] | None = None) -> None:
        command = [flower_command("flower-superexec"), "--runtime-api-address", link.address]
        command += ["--insecure"] if link.ca is None else ["--root-certificates", str(link.ca.absolute())]
        super().__init__(folder, "superexec", command, environment=environment)


class SuperNode(Process):
    """A client's connection to the server: pulls messages, has the client app answer them, pushes the replies.

    With ``isolation="subprocess"`` Flower starts an interpreter per message. With ``"process"`` nobody does: a
    resident client is expected to fetch its work at `runtime_address`.
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
        isolation: Isolation = "subprocess",
        restart: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.host, self.port = LOOPBACK, free_port()
        command = [flower_command("flower-supernode"), "--superlink", server, "--isolation", isolation]
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--insecure"] if ca is None else ["--root-certificates", str(ca.absolute())]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key.absolute())]
        if config:
            command += ["--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())]
        super().__init__(folder, name, command, restart=restart, environment=environment)

    @property
    def runtime_address(self) -> str:
        """Where a resident client on this machine fetches its work."""
        return join_address(self.host, self.port)

    def ready(self) -> bool:
        """Tell whether its local interface answers; whether the server let it in is the server's to say."""
        return self.pid != 0 and answers(self.host, self.port, None)


class Gateway(Process):
    """The one door to the outside: TLS, and nothing but the paths that SuperNodes need."""

    def __init__(self, folder: Path, link: SuperLink, *, host: str, port: int = 0) -> None:
        if link.tls is None:
            raise ProcessError("a gateway needs certificates: start the SuperLink with tls, or run without a gateway")
        self.host, self.port, self.ca = host, port or free_port(host), link.tls.ca
        command = [sys.executable, "-m", "fedfeat.engines.flower.gateway", "--listen", join_address(host, self.port)]
        command += ["--superlink", link.address, "--ca", str(self.ca.absolute())]
        command += ["--certificate", str(link.tls.certificate.absolute()), "--key", str(link.tls.key.absolute())]
        super().__init__(folder, "gateway", command)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return join_address(self.host, self.port)

    def start(self) -> Self:
        """Start it, unless its port is taken."""
        need_free(self.host, self.port)
        return super().start()

    def ready(self) -> bool:
        """Tell whether it accepts connections."""
        if not self.pid:
            return False
        # Bound to every interface it is reached over the loopback one.
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        try:
            with socket.create_connection((host, self.port), timeout=2.0):
                return True
        except OSError:
            return False
