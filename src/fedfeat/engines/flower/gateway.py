"""All that the outside can reach of a server: ends TLS, lets through what SuperNodes need, refuses the rest.

Flower serves clients, operators and the server app on one port, and asks only clients for a key. So the SuperLink
listens on the loopback interface, and this process stands in front of it: ``python -m fedfeat.engines.flower.gateway``.

Requests are read with a strict parser, judged by `refusal`, and written anew, so what the SuperLink reads is what
was judged. Bodies stream through in pieces. Every wait has a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import h11

from fedfeat.core.audit import AuditLog
from fedfeat.engines.flower.addresses import open_socket, split_address
from fedfeat.engines.flower.client_keys import WatchedKeys
from fedfeat.engines.flower.http_connection import (
    HttpConnection,
    Limits,
    Refusal,
    Stalled,
    body_length,
    forwarded_headers,
    refusal,
    returned_headers,
    within,
)


@dataclass
class Gateway:
    """Serves connections from outside, each with requests one after the other."""

    link_host: str
    link_port: int
    link_tls: ssl.SSLContext | None
    limits: Limits
    keys: WatchedKeys | None = None
    audit: AuditLog = field(default_factory=lambda: AuditLog(None))

    def __post_init__(self) -> None:
        self._open: Counter[str] = Counter()  # connections by address
        self.flight = Flight(self.limits)
        self._idle: list[tuple[float, HttpConnection]] = []
        self._log = RefusalLog(self.audit)

    @property
    def open_connections(self) -> int:
        """How many there are, those that have not shaken hands yet included."""
        return self._open.total()

    async def take(self, connection: socket.socket, peer: str, tls: ssl.SSLContext | None) -> None:
        """Serve a connection that was accepted; one too many of an address is closed before it costs a handshake."""
        if self._open[peer] >= self.limits.connections_per_address:
            self._log.note(peer, b"", Refusal(503, "too many connections of one address"))
            connection.close()
            return
        self._open[peer] += 1
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(self.limits.piece_bytes)
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = self.limits.handshake_seconds if tls else None
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
            await self.serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop), peer)
        except (OSError, TimeoutError):
            connection.close()  # no handshake
        finally:
            self._open[peer] -= 1
            self._open += Counter()  # without the addresses that have gone

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Serve one connection until it ends, breaks a rule or keeps silent for too long."""
        client = HttpConnection(True, reader, writer, self.limits)
        try:
            if self.open_connections > self.limits.connections:
                await self._refuse(client, peer, b"", Refusal(503, "too many connections"))
                return
            while await self._serve_request(client, peer):
                client.http.start_next_cycle()
        except (OSError, Stalled):
            pass  # whoever it was is gone, or too slow
        finally:
            await client.close()

    async def _serve_request(self, client: HttpConnection, peer: str) -> bool:
        """Serve one request; return whether the connection may carry another."""
        try:
            request = await client.receive_head()
        except h11.RemoteProtocolError as error:
            await self._refuse(client, peer, b"", Refusal(error.error_status_hint, str(error)))
            return False
        if not isinstance(request, h11.Request):
            return False
        why = refusal(request, self.limits.header_bytes, self.limits.body_bytes)
        if why is None and self.keys is not None and (reason := self.keys.refusal(dict(request.headers))):
            why = Refusal(401, reason)  # a client takes 403 for the end of a run
        if why is not None:
            await self._refuse(client, peer, request.method + b" " + request.target, why)
            return False
        length = body_length(request)
        if not await self.flight.board(peer, length):
            await self._refuse(client, peer, request.target, Refusal(503, "too much on its way; try again"))
            return False
        try:
            await self._forward(client, request, peer)
        finally:
            await self.flight.leave(peer, length)
        return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE

    async def _forward(self, client: HttpConnection, request: h11.Request, peer: str) -> None:
        try:
            link = await self._link()
        except (OSError, TimeoutError):
            await self._refuse(client, peer, request.target, Refusal(503, "the server is starting; try again"))
            return
        answered = False
        try:
            address = f"{self.link_host}:{self.link_port}"
            headers = forwarded_headers(request, peer, address)
            await link.send(h11.Request(method=request.method, target=request.target, headers=headers))
            if client.http.they_are_waiting_for_100_continue:
                await client.send(h11.InformationalResponse(status_code=100, headers=[]))
            await within(self.limits.body_seconds, _relay_body(client, link))
            response = await link.receive()
            if not isinstance(response, h11.Response):
                raise ConnectionResetError("no reply")
            answered = True
            await client.send(
                h11.Response(
                    status_code=response.status_code, reason=response.reason, headers=returned_headers(response)
                )
            )
            await within(self.limits.body_seconds, _relay_body(link, client))
        except (OSError, Stalled, h11.ProtocolError) as error:
            if not answered:
                await self._refuse(client, peer, request.target, Refusal(502, f"no exchange with the server: {error}"))
        finally:
            await self._keep_or_close(link)

    async def _link(self) -> HttpConnection:
        """Return a connection to the SuperLink, a recent one if there is one."""
        while self._idle:
            since, link = self._idle.pop()
            if time.monotonic() - since < self.limits.link_idle_seconds and link.usable():
                return link
            await link.close()
        name = self.link_host if self.link_tls else None
        opening = asyncio.open_connection(self.link_host, self.link_port, ssl=self.link_tls, server_hostname=name)
        reader, writer = await asyncio.wait_for(opening, self.limits.handshake_seconds)
        return HttpConnection(False, reader, writer, self.limits)

    async def _keep_or_close(self, link: HttpConnection) -> None:
        """Keep a connection that is ready for the next request, and close those that waited for too long."""
        oldest = time.monotonic() - self.limits.link_idle_seconds
        stale = [kept for since, kept in self._idle if since < oldest]
        self._idle = [(since, kept) for since, kept in self._idle if since >= oldest]
        if link.http.our_state is h11.DONE and link.http.their_state is h11.DONE and link.usable():
            link.http.start_next_cycle()
            self._idle.append((time.monotonic(), link))
        else:
            stale.append(link)
        for gone in stale:
            await gone.close()

    async def _refuse(self, client: HttpConnection, peer: str, what: bytes, why: Refusal) -> None:
        """Answer with the reason and end the connection, so that a body nobody read cannot pass for a request."""
        self._log.note(peer, what, why)
        body = (why.reason + "\n").encode("ascii", "replace")
        headers = [("content-type", "text/plain"), ("content-length", str(len(body))), ("connection", "close")]
        with contextlib.suppress(OSError, Stalled, h11.LocalProtocolError):
            await client.send(h11.Response(status_code=why.status, headers=headers))
            await client.send(h11.Data(data=body))
            await client.send(h11.EndOfMessage())
            await client.discard()


class Flight:
    """How many bytes of bodies are on their way, of every address and in all; who finds no room waits for a while."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes: Counter[str] = Counter()  # by address
        self._changed = asyncio.Condition()

    async def board(self, peer: str, length: int) -> bool:
        """Wait for room and take it; tell whether there was any in time."""

        def room() -> bool:
            own, others = self.bytes[peer] + length, self.bytes.total() + length
            return own <= self.limits.flight_bytes_per_address and others <= self.limits.flight_bytes

        try:
            async with asyncio.timeout(self.limits.room_seconds), self._changed:
                await self._changed.wait_for(room)
        except TimeoutError:
            return False
        self.bytes[peer] += length
        return True

    async def leave(self, peer: str, length: int) -> None:
        """Give the room back."""
        self.bytes[peer] -= length
        self.bytes += Counter()
        async with self._changed:
            self._changed.notify_all()


async def _relay_body(source: HttpConnection, target: HttpConnection) -> None:
    """Pass a body on piece by piece, never holding more than a piece."""
    while isinstance(event := await source.receive(), h11.Data):
        await target.send(h11.Data(data=bytes(event.data)))
    if not isinstance(event, h11.EndOfMessage):
        raise ConnectionResetError("ended in the middle of a message")
    await target.send(h11.EndOfMessage())


class RefusalLog:
    """One line per refusal, at most one a second, so that nobody can fill the disk from outside."""

    def __init__(self, audit: AuditLog) -> None:
        self._last, self._unsaid, self._audit = 0.0, 0, audit

    def note(self, peer: str, what: bytes, why: Refusal) -> None:
        """Write who was refused what, and how many were refused unsaid before."""
        if time.monotonic() - self._last < 1.0:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more before)" if self._unsaid else ""
        print(f"{why.status} {peer} {what[:200]!r}: {why.reason}{more}", file=sys.stderr, flush=True)
        self._audit.note("request refused", peer=peer, request=what, status=why.status, reason=why.reason + more)
        self._last, self._unsaid = time.monotonic(), 0


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of the outside."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Listener:
    """Accepts connections at an address, and hands them to the gateway before any handshake."""

    def __init__(self, gateway: Gateway, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        listening.setblocking(False)
        self.gateway, self.tls, self.sockets = gateway, tls, [listening]
        self._served: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(listening))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(0.1)  # no file descriptor is left, or whoever it was is gone
                continue
            serving = asyncio.create_task(self.gateway.take(connection, str(address[0]), self.tls))
            self._served.add(serving)
            serving.add_done_callback(self._served.discard)

    def close(self) -> None:
        """Stop listening, and end what is being served."""
        for task in (self._accepting, *self._served):
            task.cancel()
        self.sockets[0].close()


async def run(gateway: Gateway, listening: socket.socket, tls: ssl.SSLContext) -> None:
    """Serve until told to end by a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = Listener(gateway, listening, tls)
    print(f"listening on {listening.getsockname()[:2]}, for clients only", file=sys.stderr, flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    """Run the gateway in front of a SuperLink."""
    parser = argparse.ArgumentParser(
        prog="python -m fedfeat.engines.flower.gateway", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--listen", required=True, help="HOST:PORT to serve")
    parser.add_argument("--superlink", required=True, help="HOST:PORT of the SuperLink, on this machine")
    for name in ("ca", "certificate", "key"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--clients", required=True, type=Path, help="folder of clients' public keys")
    parser.add_argument("--audit", required=True, type=Path, help="file of refusals")
    parser.add_argument("--descriptor", type=int, help="a socket that listens there already")
    options = parser.parse_args()
    trusted, keys = ssl.create_default_context(cafile=options.ca), WatchedKeys(options.clients, every=0.5)
    gateway = Gateway(*split_address(options.superlink), trusted, Limits(), keys, AuditLog(options.audit))
    given = options.descriptor
    listening = open_socket(*split_address(options.listen)) if given is None else socket.socket(fileno=given)
    asyncio.run(run(gateway, listening, server_tls(options.certificate, options.key)))


if __name__ == "__main__":
    main()
