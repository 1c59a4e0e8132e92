"""Flower's SuperLink for one account: ``python -m fedfeat.engines.flower.superlink`` with the options of the original.

Its control and runtime interfaces know no login, and any account of the machine can connect to a port on 127.0.0.1.
Linux says in ``/proc/net/tcp`` whose socket is at the other end, so what other accounts ask for is refused here, but
for what clients need: those have keys, or are on a server for trying things. On other systems nothing is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from flwr.superlink.cli import flower_superlink

from fedfeat.engines.flower.addresses import LOOPBACK

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
ESTABLISHED = "01"
FOR_CLIENTS = ("/v1/fleet/", "/health")
TABLE = Path("/proc/net/tcp")


def account_of(client: tuple[str, int], port: int, table: Iterable[str]) -> int | None:
    """Return the account that holds the other end of a connection from this machine; None if the table does not say.

    A socket that its owner has closed belongs to nobody and is listed as root's, so it does not count.
    """
    octets = client[0].split(".")
    if len(octets) != 4 or not all(octet.isdecimal() for octet in octets):
        return None
    there = bytes(map(int, reversed(octets))).hex().upper() + f":{client[1]:04X}"
    for line in table:
        fields = line.split()
        if fields[1] == there and fields[2].endswith(f":{port:04X}") and fields[3] == ESTABLISHED and fields[9] != "0":
            return int(fields[7])
    return None


class OneAccount:
    """An app that answers this account alone, but for the paths of clients."""

    def __init__(self, app: Any, port: int) -> None:
        self.app, self.port = app, port

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "http" and not scope["path"].startswith(FOR_CLIENTS) and not self._is_own(scope["client"]):
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": b"another account of this machine\n"})
            return
        await self.app(scope, receive, send)

    def _is_own(self, client: tuple[str, int]) -> bool:
        with TABLE.open() as table:
            next(table)
            return account_of(client, self.port, table) == os.geteuid()


def run_for_one_account(run: Callable[..., None], app: Any, **options: Any) -> None:
    """Run an app as Flower wants it run, on the loopback interface for this account alone."""
    run(app=OneAccount(app, options["port"]) if options["host"] == LOOPBACK else app, **options)


def main() -> None:
    """Start the SuperLink."""
    if TABLE.exists():
        uvicorn.run = partial(run_for_one_account, uvicorn.run)
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
