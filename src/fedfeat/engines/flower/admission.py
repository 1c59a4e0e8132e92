"""Which requests from outside may reach the SuperLink: the ones that SuperNodes send, letter by letter.

A request is judged as it was sent. Nothing is decoded or normalised, so there is no second reading of a path that
could differ from the first: ``/v1/fleet/../control``, ``//v1/fleet``, ``%2e``, a query or an absolute address are all
simply not among the paths that pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

FLEET = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
# Addressed to the next machine only, or to be set by the gateway and nobody else.
NOT_PASSED_ON = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect host forwarded".split()
)


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
    length = body_length(request)
    if (request.method, request.target) == (b"GET", b"/health"):
        return Refusal(400, "no body expected") if length else None
    if request.method != b"POST" or not FLEET.fullmatch(request.target):
        return Refusal(403, "not a path for clients")
    if length is None:
        return Refusal(411, "send Content-Length")
    if length > largest_body:
        return Refusal(413, f"more than {largest_body} bytes")
    return None


def body_length(request: h11.Request) -> int | None:
    """Return the announced length of the body; None when nothing was announced."""
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
    return None


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
