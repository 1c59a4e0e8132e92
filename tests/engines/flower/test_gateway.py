"""What the gateway lets through and what it does not, and what reaches the server behind it."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs the extra 'flower'")

import h11
from gateway_server import HEAD, PASSES, SMUGGLED, RunningGateway, status_of, with_gateway

from attack.hostile_connections import METHODS, PATHS
from fedfeat.engines.flower.http_connection import refusal


def test_a_client_request_passes_with_its_body_and_answer() -> None:
    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(PASSES)
        assert status_of(answer) == 200
        assert answer.endswith(b"\r\n\r\n5")
        assert served.behind.requests[0].startswith(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        assert served.behind.requests[0].endswith(b"\r\n\r\nhello")

    with_gateway(scenario)


REFUSED_TARGETS = [
    *PATHS,
    "/v1/fleet//../control",
    "/v1/fleet/pull-messages/extra",
    "/v1/fleet/pull-messages#x",
    "/v1/fleet/pull-messages%20HTTP/1.1",
    "/v1/fleet/pull_messages",
    "\\v1\\fleet\\..\\control",
    "http://127.0.0.1/v1/fleet/pull-messages",
]


def test_any_other_target_or_method_is_refused_and_nothing_reaches_the_server() -> None:
    lines = [f"POST {target}" for target in REFUSED_TARGETS]
    lines += [f"{method} /v1/fleet/pull-messages" for method in (*METHODS, "POST\t")]

    async def scenario(served: RunningGateway) -> None:
        for line in lines:
            request = f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello".encode()
            assert status_of(await served.send(request)) in (400, 403), line
            assert served.behind.connections == 0, line

    with_gateway(scenario)


@pytest.mark.parametrize(
    ("request_", "statuses"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, {411}),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED, {411}),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", {411}),
        (HEAD + b"Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\nhello", {400, 501}),
        (HEAD + b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\nhello", {400}),
        (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", {400, 501}),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", {400}),
        (HEAD + b"Content-Length: 5, 6\r\n\r\nhello!", {400}),
        (HEAD + b"Content-Length: +5\r\n\r\nhello", {400}),
        (HEAD + b"Content-Length: -1\r\n\r\n", {400}),
        (HEAD + b"Content-Length: 0x5\r\n\r\nhello", {400}),
        (HEAD + b"\r\n", {411}),
        (HEAD + b"Host: y\r\nContent-Length: 0\r\n\r\n", {400}),
        (HEAD + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n", {403}),
        (b"POST /v1/fleet/pull-messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n", {400}),
        (b"POST /v1/fleet/pull-messages HTTP/1.0\r\nHost: x\r\nContent-Length: 0\r\n\r\n", {505}),
        (b"POST /v1/fleet/pull-messages\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 403, 505}),
        (HEAD + b"A: " + b"a" * 33_000 + b"\r\nContent-Length: 0\r\n\r\n", {431}),
        (HEAD + b"A: " + b"a" * 600_000, {400, 431}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    ],
)
def test_a_request_that_could_be_read_two_ways_is_refused(request_: bytes, statuses: set[int]) -> None:
    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(request_)
        assert status_of(answer) in statuses
        assert answer.count(b"HTTP/1.1 ") == 1, "the connection must end with the refusal"
        assert b"connection: close" in answer.lower()
        assert served.behind.connections == 0

    with_gateway(scenario)


VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12)  # others end in the parser
MIDDLE = st.sampled_from(["/v1/fleet/", "/v1/fleet/a", "/v1/", "/health", "x"])


@given(st.one_of(st.just(""), VISIBLE), MIDDLE, VISIBLE)
def test_only_plain_names_below_fleet_pass(before: str, middle: str, after: str) -> None:
    target = (before + middle + after).encode()
    request = h11.Request(method=b"POST", target=target, headers=[("host", "x"), ("content-length", "0")])
    name = target.removeprefix(b"/v1/fleet/")
    letters = name.replace(b"-", b"")
    plain = target != name and letters.isalpha() and letters.islower() and letters.isascii()
    well_formed = not (name.startswith(b"-") or name.endswith(b"-") or b"--" in name)
    assert (refusal(request, 1 << 15, 1 << 20) is None) == (plain and well_formed)


def test_what_follows_a_refused_request_on_the_same_connection_is_not_read_as_a_request() -> None:
    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(b"POST /v1/control/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" + PASSES)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert served.behind.requests == []

    with_gateway(scenario)


def test_a_body_that_looks_like_a_request_stays_a_body() -> None:
    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED)
        assert status_of(answer) == 200
        assert len(served.behind.requests) == 1
        assert served.behind.requests[0].endswith(SMUGGLED)

    with_gateway(scenario)


def test_a_longer_body_than_announced_is_judged_as_the_next_request() -> None:
    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(HEAD + b"Content-Length: 0\r\n\r\n" + SMUGGLED)
        assert [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 403]
        assert len(served.behind.requests) == 1

    with_gateway(scenario)


def test_headers_of_the_connection_are_not_passed_on_and_the_sender_cannot_invent_its_address() -> None:
    async def scenario(served: RunningGateway) -> None:
        extra = b"Connection: keep-alive\r\nX-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n"
        extra += b"Proxy-Authorization: secret\r\nFlwr-Signature: kept\r\nContent-Length: 0\r\n\r\n"
        await served.send(HEAD + extra)
        (request,) = served.behind.requests
        assert b"6.6.6.6" not in request
        assert b"secret" not in request
        assert b"x-forwarded-for: 127.0.0.1" in request.lower()
        assert b"flwr-signature: kept" in request.lower()
        assert f"host: 127.0.0.1:{served.behind.port}".encode() in request.lower()

    with_gateway(scenario)


def mutated(draw: random.Random) -> bytes:
    """Return a request with a few bytes changed, inserted, repeated or lost."""
    raw = bytearray(
        draw.choice([PASSES, SMUGGLED, PASSES + SMUGGLED, HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
    )
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(raw))
        match draw.randrange(4):
            case 0:
                raw[place] = draw.choice(b"\r\n \t:/.%\0\xff0aZ")
            case 1:
                raw[place:place] = draw.choice([b"\r\n", b"\n", b" ", b"\0", b"/", b"Content-Length: 3\r\n", b"\x0b"])
            case 2:
                raw[place:place] = raw[max(0, place - 20) : place]
            case 3:
                del raw[place : place + draw.randint(1, 6)]
    return bytes(raw)


def test_a_thousand_broken_requests_bring_nothing_through_but_what_may_pass() -> None:
    draw = random.Random(11)

    async def scenario(served: RunningGateway) -> None:
        for _ in range(20):
            await asyncio.gather(*(served.send(mutated(draw)) for _ in range(50)))
        assert served.behind.requests, "some mutations are harmless"
        for request in served.behind.requests:
            line, _, rest = request.partition(b"\r\n")
            assert re.fullmatch(rb"POST /v1/fleet/[a-z]+(-[a-z]+)* HTTP/1.1", line)
            assert rest.lower().partition(b"\r\n\r\n")[0].count(b"content-length:") == 1
        assert status_of(await served.send(PASSES)) == 200

    with_gateway(scenario, stall_seconds=1.0, header_seconds=1.0)
