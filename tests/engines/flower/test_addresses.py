"""What a client says about a server before it starts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from fedfeat.core.errors import ConfigError
from fedfeat.engines.flower import keys
from fedfeat.engines.flower.addresses import check_server, free_port
from fedfeat.engines.flower.gateway import server_tls

HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    keys.make_keys(folder / "ours", ["localhost"], ["a"])
    keys.make_keys(folder / "theirs", ["localhost"], ["a"])
    keys.make_keys(folder / "old", ["localhost"], ["a"], days=0)  # until now
    return folder


class Server(threading.Thread):
    """Answers one connection after another with the same words, over TLS if it has keys."""

    def __init__(self, folder: Path | None, answer: bytes = HEALTHY) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("", 0), family=socket.AF_INET)
        self.port = self.listening.getsockname()[1]
        self.tls = server_tls(folder / "server.crt", folder / "server.key") if folder else None
        self.answer = answer

    def run(self) -> None:
        while True:
            try:
                plain, _ = self.listening.accept()
            except OSError:
                return
            try:
                with self.tls.wrap_socket(plain, server_side=True) if self.tls else plain as talking:
                    talking.recv(1000)
                    talking.sendall(self.answer)
            except OSError:
                pass


@pytest.fixture
def secure(made: Path) -> Iterator[Server]:
    server = Server(made / "ours" / "server")
    server.start()
    yield server
    server.listening.close()


@pytest.fixture
def plain() -> Iterator[Server]:
    server = Server(None)
    server.start()
    yield server
    server.listening.close()


def test_a_server_that_fits_is_there(made: Path, secure: Server, plain: Server) -> None:
    assert check_server("localhost", secure.port, made / "ours/server/ca.crt")
    assert check_server("127.0.0.1", secure.port, made / "ours/server/ca.crt")
    assert check_server("127.0.0.1", plain.port, None)


def test_nobody_there_may_still_come(made: Path) -> None:
    assert not check_server("127.0.0.1", free_port(), made / "ours/server/ca.crt")
    assert not check_server("127.0.0.1", free_port(), None)
    assert not check_server("no-such-host.invalid", 9092, None)


def test_a_server_that_is_starting_may_still_come(made: Path) -> None:
    server = Server(made / "ours" / "server", b"HTTP/1.1 503 Not yet\r\nContent-Length: 0\r\n\r\n")
    server.start()
    assert not check_server("localhost", server.port, made / "ours/server/ca.crt")
    server.listening.close()


def test_what_waiting_does_not_fix_is_refused(made: Path, secure: Server, plain: Server) -> None:
    with pytest.raises(ConfigError, match="not from the authority in"):
        check_server("localhost", secure.port, made / "theirs/server/ca.crt")
    with pytest.raises(ConfigError, match=r"does not name 127\.0\.0\.2; .* --renew --host 127\.0\.0\.2"):
        check_server("127.0.0.2", secure.port, made / "ours/server/ca.crt")
    with pytest.raises(ConfigError, match="does not speak TLS; start the server with --keys"):
        check_server("127.0.0.1", plain.port, made / "ours/server/ca.crt")
    with pytest.raises(ConfigError, match="speaks TLS; pass this client's keys"):
        check_server("127.0.0.1", secure.port, None)


def test_a_certificate_that_is_out_of_date_is_refused(made: Path) -> None:
    time.sleep(1.1)  # certificates count in seconds
    server = Server(made / "old" / "server")
    server.start()
    with pytest.raises(ConfigError, match="out of date"):
        check_server("localhost", server.port, made / "old/server/ca.crt")
    server.listening.close()
