"""A network of its own: what listens there is not reached from outside, and the other way round."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedfeat.engines.flower import namespace
from fedfeat.engines.flower.addresses import open_socket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
CHILD = """
import os, socket
from contextlib import suppress
print(os.environ["FEDFEAT_NAMESPACE"], flush=True)
inside = socket.create_server(("127.0.0.1", {inside}))
given = socket.socket(fileno=int(os.environ["FEDFEAT_LISTENING"]))
reached = "nobody"
with suppress(OSError):
    socket.create_connection(("127.0.0.1", {outside}), 2)
    reached = "the machine"
print(reached, flush=True)
given.accept()[0].sendall(b"let in")
"""


@contextmanager
def closing_by(child: subprocess.Popen[str]) -> Iterator[None]:
    """End a child that a failed test leaves waiting."""
    try:
        yield
    finally:
        child.kill()


def test_only_the_given_socket_crosses() -> None:
    with open_socket("127.0.0.1", 0) as given, open_socket("127.0.0.1", 0) as outside, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        inside = free.getsockname()[1]
        free.close()
        os.set_inheritable(given.fileno(), True)
        code = CHILD.format(inside=inside, outside=outside.getsockname()[1])
        command = [sys.executable, "-I", namespace.__file__, str(given.fileno()), sys.executable, "-I", "-c", code]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=(given.fileno(),)) as child,
            closing_by(child),
        ):
            assert child.stdout is not None
            state = child.stdout.readline().strip()
            if state.startswith("not allowed here"):
                pytest.skip(state)
            assert state == namespace.INSIDE
            assert child.stdout.readline().strip() == "nobody", "it reaches the machine's loopback interface"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", inside), 2)
            with socket.create_connection(given.getsockname(), 5) as connection:
                assert connection.recv(10) == b"let in"
            assert child.wait(10) == 0
