"""A running gateway with a stand-in for the SuperLink behind it, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fedfeat.engines.flower.addresses import open_socket
from fedfeat.engines.flower.gateway import Gateway, Listener
from fedfeat.engines.flower.http_connection import Limits

PASSES = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Behind:
    """A server in the place of the SuperLink: keeps the raw bytes of each request and answers with its length."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    pause: float = 0.0
    break_after_head: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if self.break_after_head:
                    break
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line[:15] == b"content-length:"), 0)
                body = await reader.readexactly(length)
                self.requests.append(head + body)
                await asyncio.sleep(self.pause)
                answer = str(len(body)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
                await writer.drain()
        self.open -= 1
        writer.close()


@dataclass
class RunningGateway:
    """A running gateway and what is behind it."""

    port: int
    behind: Behind
    gateway: Gateway

    async def send(self, raw: bytes, wait: float = 5.0) -> bytes:
        """Send raw bytes on a fresh connection and return everything that comes back until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(raw)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            if b"connection: close" not in raw.lower():
                writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), wait)
        writer.close()
        return answer


@contextlib.asynccontextmanager
async def served(behind: Behind | None = None, **limits: Any) -> AsyncIterator[RunningGateway]:
    behind = behind or Behind()
    back = await asyncio.start_server(behind.serve, "127.0.0.1", 0)
    behind.port = back.sockets[0].getsockname()[1]
    gateway = Gateway("127.0.0.1", behind.port, None, Limits(**limits))
    front = Listener(gateway, open_socket("127.0.0.1", 0), None)
    try:
        yield RunningGateway(front.sockets[0].getsockname()[1], behind, gateway)
    finally:
        front.close()
        back.close()


def with_gateway(
    scenario: Callable[[RunningGateway], Awaitable[None]], behind: Behind | None = None, **limits: Any
) -> None:
    async def play() -> None:
        async with served(behind, **limits) as opened:
            await scenario(opened)

    asyncio.run(play())


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])
