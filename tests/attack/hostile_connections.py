"""A stranger on the network: hundreds of connections to a server's address, none of which a client would make.

    python hostile_connections.py HOST:PORT FOLDER OF A SET OF KEYS

It prints one JSON object: by kind of attack, how often each answer came (a status, or that the connection was closed).
"""

from __future__ import annotations

import base64
import datetime
import json
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

POST = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"
START_RUN = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
PATHS = [
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/control/list-nodes",
    "/v1/runtime/acquire-task",
    "/docs",
    "/openapi.json",
    "/",
    "*",
    "/v1/fleet",
    "/v1/fleet/",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/./pull-messages",
    "/v1/fleet/..%2fcontrol/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/%252e%252e/control/start-run",
    "//v1/fleet/pull-messages",
    "/v1//fleet/pull-messages",
    "/V1/FLEET/pull-messages",
    "/v1/fleet/pull-messages/",
    "/v1/fleet/pull-messages?to=/v1/control/start-run",
    "/v1/fleet/pull-messages;x=/v1/control",
    "/v1/fleet/pull-messages%00",
    "/v1/fleet/..;/control/start-run",
    "http://127.0.0.1/v1/control/start-run",
    "https://x/v1/fleet/pull-messages",
    "/health?x",
    "/health/",
]
METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD", "CONNECT", "PRI", "post", "XXXXXXXXX"]
TWO_READINGS = (
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + START_RUN,
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + START_RUN,
    POST + b"Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\nhello",
    POST + b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\nhello",
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    POST + b"Content-Length: 5, 6\r\n\r\nhello!",
    POST + b"Content-Length: +5\r\n\r\nhello",
    POST + b"Content-Length: -1\r\n\r\n",
    POST + b"Content-Length: 0x5\r\n\r\nhello",
    POST + b"\r\n",
    POST + b"Host: y\r\nContent-Length: 0\r\n\r\n",
    POST + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n",
    b"POST /v1/fleet/pull-messages HTTP/1.0\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"POST /v1/fleet/pull-messages\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
)
OVERSIZE = (
    POST + b"A: " + b"a" * 33_000 + b"\r\nContent-Length: 0\r\n\r\n",
    POST + b"A: " + b"a" * 600_000,
    POST + b"".join(b"A%d: b\r\n" % k for k in range(10_000)) + b"Content-Length: 0\r\n\r\n",
    b"POST /v1/fleet/" + b"a" * 33 + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"POST /v1/fleet/" + b"a" * 30_000 + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    POST + b"Content-Length: 67108865\r\n\r\n",
    POST + b"Content-Length: 1000000000000\r\n\r\n",
    POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
)
FORGED = (
    b"POST /v1/fleet/x%0a2026-01-01 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /\x1b[2J\n2026 WARNING all is well\r\n\r\n",
)
UNFINISHED = (b"", b"POST /v1/fl", POST, POST + b"Content-Length: 5\r\n")
MANY = 200


class Stranger:
    """Opens connections to a server, each from an address of its own kind on this machine."""

    def __init__(self, address: str, keys: Path) -> None:
        host, port = address.rsplit(":", 1)
        self.at, self.keys = (host, int(port)), keys
        self.tls = ssl.create_default_context(cafile=keys / "server" / "ca.crt")

    def connect(self, source: str = "127.0.0.2", encrypted: bool = True) -> socket.socket:
        plain = socket.create_connection(self.at, timeout=30, source_address=(source, 0))
        return self.tls.wrap_socket(plain, server_hostname="localhost") if encrypted else plain

    def answer(self, request: bytes, encrypted: bool = True) -> str:
        """Send one request and return the status of what comes back, or that nothing does."""
        try:
            with self.connect(encrypted=encrypted) as connection:
                connection.sendall(request)
                first = connection.recv(4096)
        except OSError:
            return "closed"
        return first.split()[1].decode("ascii", "replace") if first.startswith(b"HTTP/") else "closed"

    def answers(self, requests: Iterable[bytes]) -> Counter[str]:
        return Counter(map(self.answer, requests))

    def unfinished(self) -> Counter[str]:
        """Begin requests and never end them; the other side has to close, within a limit of its own."""
        held = [self.connect() for _ in range(3) for _ in UNFINISHED]
        for connection, begun in zip(held, UNFINISHED * 3, strict=True):
            connection.sendall(begun)
        held += [self.connect(encrypted=False) for _ in range(3)]  # hands that are never shaken
        limit, ended = time.monotonic() + 100, Counter[str]()
        for connection in held:
            connection.settimeout(max(limit - time.monotonic(), 0.1))
            try:
                while connection.recv(4096):
                    pass
                ended["closed"] += 1
            except TimeoutError:
                ended["still open"] += 1
            except OSError:
                ended["closed"] += 1
            connection.close()
        return ended

    def many(self) -> Counter[str]:
        """Open many connections at once, from one address."""
        held = []
        for _ in range(MANY):
            with suppress(OSError):
                held.append(self.connect("127.0.0.3", encrypted=False))
        time.sleep(1.0)
        found = Counter[str]()
        for connection in held:
            connection.settimeout(0.01)
            try:
                found["open" if connection.recv(1) else "closed"] += 1
            except TimeoutError:
                found["open"] += 1
            except OSError:
                found["closed"] += 1
        for connection in held:
            connection.close()
        return found

    def signed(self) -> Counter[str]:
        """Ask for messages with keys and signatures that are not right."""
        name = next(iter(sorted((self.keys / "clients").iterdir()))).name
        content = (self.keys / "clients" / name / f"{name}.key").read_bytes()
        own = serialization.load_ssh_private_key(content, None)
        stranger = ec.generate_private_key(ec.SECP384R1())
        assert isinstance(own, ec.EllipticCurvePrivateKey)
        requests = [
            _request(stranger, _pem(stranger)),  # an unknown key
            _request(stranger, _pem(own)),  # a known key with a stranger's signature
            _request(own, _pem(own), age=3600),  # a recorded request
            _request(own, _pem(own), age=-3600),
            _request(own, b"rubbish"),
            _request(own, b""),
            POST + b"Content-Type: application/protobuf\r\nContent-Length: 0\r\n\r\n",  # no key
        ]
        return self.answers(requests * 3)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def _request(key: ec.EllipticCurvePrivateKey, claims: bytes, age: float = 0.0) -> bytes:
    when = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
    headers = {
        "content-type": "application/protobuf",
        "flwr-public-key": base64.b64encode(claims).decode(),
        "flwr-timestamp": when,
        "flwr-signature": base64.b64encode(key.sign(when.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        "content-length": "0",
    }
    return POST + "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"


def main() -> None:
    """Attack a server in every way, and print what came back."""
    stranger = Stranger(sys.argv[1], Path(sys.argv[2]))
    five = b"HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    attacks: dict[str, Callable[[], Counter[str]]] = {
        "paths": lambda: stranger.answers(b"POST %s " % path.encode() + five for path in PATHS),
        "methods": lambda: stranger.answers(b"%s /v1/fleet/pull-messages " % m.encode() + five for m in METHODS),
        "two readings": lambda: stranger.answers(TWO_READINGS),
        "oversize": lambda: stranger.answers(OVERSIZE),
        "forged log lines": lambda: stranger.answers(FORGED),
        "keys": stranger.signed,
        "plaintext": lambda: Counter(stranger.answer(POST, encrypted=False) for _ in range(5)),
        "many": stranger.many,
        "unfinished": stranger.unfinished,
    }
    print(json.dumps({name: attack() for name, attack in attacks.items()}))


if __name__ == "__main__":
    main()
