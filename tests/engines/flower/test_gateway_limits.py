"""How much and how long the gateway bears: bodies, silence, dripping, many connections, a server that is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from gateway_server import HEAD, PASSES, Behind, RunningGateway, served, status_of, with_gateway

from fedfeat.engines.flower.addresses import open_socket
from fedfeat.engines.flower.gateway import Gateway, Listener, server_tls
from fedfeat.engines.flower.http_connection import Limits
from fedfeat.engines.flower.keys import make_keys, read_server_keys

pytestmark = pytest.mark.slow


def test_a_connection_carries_many_requests_and_so_does_the_one_behind() -> None:
    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(PASSES * 20)
        assert answer.count(b"HTTP/1.1 200") == 20
        assert served.behind.connections == 1

    with_gateway(scenario)


def test_large_bodies_stream_through_unchanged() -> None:
    body = bytes(range(256)) * (20 << 12)

    async def scenario(served: RunningGateway) -> None:
        answer = await served.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, wait=30)
        assert answer.endswith(str(len(body)).encode())
        assert served.behind.requests[0].endswith(body)

    with_gateway(scenario)


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    async def scenario(served: RunningGateway) -> None:
        assert status_of(await served.send(HEAD + b"Content-Length: 1001\r\n\r\n")) == 413
        assert served.behind.connections == 0
        assert status_of(await served.send(HEAD + b"Content-Length: 1000\r\n\r\n" + b"a" * 1000)) == 200

    with_gateway(scenario, body_bytes=1000)


def test_expect_continue_is_answered_before_the_body_comes() -> None:
    async def scenario(served: RunningGateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 100")
        await reader.readline()
        writer.write(b"hello")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
        writer.close()

    with_gateway(scenario)


@pytest.mark.parametrize("start", [b"", b"POST /v1/fl", HEAD + b"Content-Length: 5\r\n\r\nhel"])
def test_silence_ends_the_connection(start: bytes) -> None:
    async def scenario(served: RunningGateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(start)
        await asyncio.wait_for(reader.read(), 5)
        assert served.behind.requests == []
        writer.close()

    with_gateway(scenario, idle_seconds=0.2, header_seconds=0.2, stall_seconds=0.2)


@pytest.mark.parametrize("what", ["header", "body"])
def test_dripping_a_byte_at_a_time_does_not_hold_a_connection_open(what: str) -> None:
    async def scenario(served: RunningGateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HEAD if what == "header" else HEAD + b"Content-Length: 100\r\n\r\n")
        closed = asyncio.ensure_future(reader.read())
        for _ in range(60):
            writer.write(b"a")
            await asyncio.sleep(0.05)
            if closed.done():
                return
        pytest.fail("three seconds of dripping were tolerated with a limit of 0.4")

    with_gateway(scenario, header_seconds=0.4, body_seconds=0.4)


def test_too_many_connections_are_told_so_and_the_others_go_on() -> None:
    async def scenario(served: RunningGateway) -> None:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]
        for _ in range(100):
            if served.gateway.open_connections == 3:
                break
            await asyncio.sleep(0.01)
        assert status_of(await served.send(PASSES)) == 503
        reader, writer = held[0]
        writer.write(PASSES)
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
        for _, held_writer in held:
            held_writer.close()

    with_gateway(scenario, connections=3)


def test_many_connections_at_once_are_all_served() -> None:
    async def scenario(served: RunningGateway) -> None:
        answers = await asyncio.gather(*(served.send(PASSES, wait=30) for _ in range(200)))
        assert [status_of(answer) for answer in answers] == [200] * 200
        assert len(served.behind.requests) == 200

    with_gateway(scenario, connections_per_address=200)


def test_connections_behind_are_not_hoarded() -> None:
    async def scenario(served: RunningGateway) -> None:
        await asyncio.gather(*(served.send(PASSES) for _ in range(20)))
        assert served.behind.open == 20, "otherwise there is nothing to close"
        await asyncio.sleep(0.3)
        await served.send(PASSES)
        await asyncio.sleep(0.1)
        assert served.behind.open == 1

    with_gateway(scenario, Behind(pause=0.5), link_idle_seconds=0.2)


def test_a_server_that_is_down_or_breaks_is_a_reply_that_clients_retry() -> None:
    async def down() -> None:
        async with served() as opened:
            opened.gateway.link_port = 1  # nobody listens there
            assert status_of(await opened.send(PASSES)) == 503

    async def breaking(served: RunningGateway) -> None:
        assert status_of(await served.send(PASSES)) == 502

    asyncio.run(down())
    with_gateway(breaking, Behind(break_after_head=True))


def test_a_slow_server_is_given_up_on_in_time() -> None:
    async def scenario(served: RunningGateway) -> None:
        assert status_of(await served.send(PASSES)) == 502

    with_gateway(scenario, Behind(pause=2.0), stall_seconds=0.3)


def test_an_idle_gateway_does_not_work() -> None:
    async def scenario(served: RunningGateway) -> None:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(50)]
        await asyncio.sleep(0.2)
        before = time.thread_time()
        await asyncio.sleep(1.0)
        assert time.thread_time() - before < 0.2
        for _, writer in held:
            writer.close()

    with_gateway(scenario)


async def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition did not come true within two seconds")


def test_one_address_has_a_limit_of_its_own_before_it_says_anything() -> None:
    """The limit counts before the TLS handshake, which costs far more than a connection."""

    async def scenario(served: RunningGateway) -> None:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]
        await wait_for(lambda: served.gateway.open_connections == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await asyncio.wait_for(reader.read(), 2) == b"", "closed without a word"
        writer.close()
        elsewhere = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
        elsewhere[1].write(PASSES)
        assert (await asyncio.wait_for(elsewhere[0].readline(), 5)).startswith(b"HTTP/1.1 200")
        for _, opened in (*held, elsewhere):
            opened.close()
        await wait_for(lambda: served.gateway.open_connections == 0)
        assert status_of(await served.send(PASSES)) == 200

    with_gateway(scenario, connections_per_address=3)


def test_unfinished_bodies_of_one_address_and_of_all_have_a_limit() -> None:
    async def scenario(served: RunningGateway) -> None:
        unfinished = HEAD + b"Content-Length: 1000\r\n\r\n" + b"a" * 999
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(6)]
        for _, writer in held:
            writer.write(unfinished)
        await asyncio.sleep(0.4)
        assert served.behind.open == 2, "bodies of two connections are in flight, the others wait or are refused"
        other = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
        other[1].write(PASSES)
        assert (await asyncio.wait_for(other[0].readline(), 5)).startswith(b"HTTP/1.1 200")
        reading = [asyncio.create_task(reader.read()) for reader, _ in held]
        done, waiting = await asyncio.wait(reading, timeout=3)
        assert [status_of(task.result()) for task in done] == [503] * 4
        for task in waiting:
            task.cancel()
        for _, writer in (*held, other):
            writer.close()

    with_gateway(scenario, flight_bytes=3000, flight_bytes_per_address=2000, room_seconds=0.6)


@pytest.mark.parametrize("length", [33, 30_000])
def test_a_long_path_reaches_nobody(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(served: RunningGateway) -> None:
        path = b"/v1/fleet/" + b"a" * length
        answer = await served.send(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert status_of(answer) == 403
        assert served.behind.connections == 0

    with_gateway(scenario)
    assert len(capsys.readouterr().err) < 400


def test_hands_that_are_never_shaken_leave_nothing_behind(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["localhost"], ["a"])
    files = read_server_keys(tmp_path / "keys" / "server").certificates

    async def play() -> None:
        gateway = Gateway("127.0.0.1", 1, None, Limits(handshake_seconds=0.3, connections_per_address=5))
        front = Listener(gateway, open_socket("127.0.0.1", 0), server_tls(files.certificate, files.key))
        port = front.sockets[0].getsockname()[1]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        held[0][1].write(b"not a handshake")
        await asyncio.sleep(0.1)
        assert gateway.open_connections <= 5
        for reader, writer in held:
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 3)
            writer.close()
        await wait_for(lambda: gateway.open_connections == 0)
        front.close()

    asyncio.run(play())
