"""HTTP at the gateway: a connection with a limit on every wait, and which requests may reach the SuperLink.

Only the requests that SuperNodes send pass. A request is judged as it was sent. Nothing is decoded or normalised, so
there is no second reading of a path that could differ from the first: ``/v1/fleet/../control``, ``//v1/fleet``,
``%2e``, a query or an absolute address are all simply not among the paths that pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import h11

Result = TypeVar("Result")
FLEET = re.compile(rb"/v1/fleet/(?=[a-z-]{1,32}$)[a-z]+(-[a-z]+)*")  # short, since the SuperLink logs it
# Addressed to the next machine only, or to be set by the gateway and nobody else.
NOT_PASSED_ON = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect host forwarded".split()
)


@dataclass(frozen=True)
class Limits:
    """How much and how long a gateway bears; SuperNodes stay far below."""

    connections: int = 1000
    connections_per_address: int = 128
    body_bytes: int = 64 << 20
    flight_bytes: int = 256 << 20
    """Bodies that are on their way at the same time; the SuperLink holds each until it is whole."""
    flight_bytes_per_address: int = 128 << 20
    room_seconds: float = 30.0
    """How long a request waits for its share of them."""
    header_bytes: int = 32 << 10
    piece_bytes: int = 256 << 10
    handshake_seconds: float = 10.0
    header_seconds: float = 20.0
    idle_seconds: float = 75.0
    stall_seconds: float = 60.0
    body_seconds: float = 600.0
    link_idle_seconds: float = 2.0
    """How long a connection to the SuperLink is kept for reuse; the SuperLink itself closes after five seconds."""


class Stalled(Exception):
    """The other side kept silent, or did not read, for too long."""


async def within(seconds: float, waiting: Awaitable[Result]) -> Result:
    """Wait for something, but not longer than that."""
    try:
        return await asyncio.wait_for(waiting, seconds)
    except TimeoutError as error:
        raise Stalled(f"nothing for {seconds:g} s") from error


class HttpConnection:
    """One side of an HTTP conversation over a stream."""

    def __init__(
        self, serving: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
    ) -> None:
        role = h11.SERVER if serving else h11.CLIENT
        self.http = h11.Connection(role, max_incomplete_event_size=limits.header_bytes)
        self._reader, self._writer, self._limits = reader, writer, limits

    async def receive_head(self) -> h11.Event:
        """Return the next request: its first byte may take a while, the rest of its head must follow soon."""
        if not self.http.trailing_data[0]:
            await self._read(self._limits.idle_seconds)
        return await within(self._limits.header_seconds, self.receive())

    async def receive(self) -> h11.Event:
        """Return the next event, informational responses left out."""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                await self._read(self._limits.stall_seconds)
            elif event is h11.PAUSED:
                raise h11.RemoteProtocolError("more data than the message announced")
            elif not isinstance(event, h11.InformationalResponse):
                assert isinstance(event, h11.Event)
                return event

    async def send(self, event: h11.Event) -> None:
        """Send an event and wait until the other side has taken most of it."""
        data = self.http.send(event)
        if data:
            self._writer.write(data)
            await within(self._limits.stall_seconds, self._writer.drain())

    async def discard(self, seconds: float = 1.0, largest: int = 1 << 20) -> None:
        """Read on for a moment after a refusal: closing with unread data would reset the connection and lose it."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while largest > 0 and (piece := await self._reader.read(self._limits.piece_bytes)):
                    largest -= len(piece)

    def usable(self) -> bool:
        """Tell whether the stream is still open on both sides."""
        return not (self._reader.at_eof() or self._writer.is_closing() or self._reader.exception())

    async def close(self) -> None:
        """Close the stream."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 5.0)

    async def _read(self, seconds: float) -> None:
        self.http.receive_data(await within(seconds, self._reader.read(self._limits.piece_bytes)))


@dataclass(frozen=True)
class Refusal:
    """Why a request goes no further, as an HTTP status and a few words."""

    status: int
    reason: str


def refusal(request: h11.Request, largest_head: int, largest_body: int) -> Refusal | None:
    """Return why a request must not pass; None when it may."""
    names = [name for name, _ in request.headers]
    if len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers) > largest_head:
        return Refusal(431, f"more than {largest_head} bytes of headers")
    if request.http_version != b"1.1":
        return Refusal(505, "only HTTP/1.1")
    if b"transfer-encoding" in names:
        # SuperNodes announce the length. Without a second way to say where a body ends, nothing can be smuggled.
        return Refusal(411, "send Content-Length, not Transfer-Encoding")
    if b"upgrade" in names:
        return Refusal(403, "no other protocols here")
    length = body_length(request) if b"content-length" in names else None
    if (request.method, request.target) == (b"GET", b"/health"):
        return Refusal(400, "no body expected") if length else None
    if request.method != b"POST" or not FLEET.fullmatch(request.target):
        return Refusal(403, "not a path for clients")
    if length is None:
        return Refusal(411, "send Content-Length")
    if length > largest_body:
        return Refusal(413, f"more than {largest_body} bytes")
    return None


def body_length(request: h11.Request) -> int:
    """Return how long a request says its body is."""
    return next((int(value) for name, value in request.headers if name == b"content-length"), 0)


def forwarded_headers(request: h11.Request, peer: str, link: str) -> list[tuple[bytes, bytes]]:
    """Return the headers to send on, with the sender's address as the gateway saw it."""
    kept = [
        (name, value)
        for name, value in request.headers
        if name not in NOT_PASSED_ON and not name.startswith(b"x-forwarded-")
    ]
    return [(b"host", link.encode()), *kept, (b"x-forwarded-for", peer.encode())]


def returned_headers(response: h11.Response) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply that concern the client."""
    return [(name, value) for name, value in response.headers if name not in NOT_PASSED_ON]
