"""A look at the server before a client starts: what no amount of waiting would mend is one sentence right away."""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

from fedfeat.core.errors import ConfigError
from fedfeat.engines.flower.addresses import join_address

NAME_MISMATCH = (62, 64)  # OpenSSL's codes: host name, IP address
OUT_OF_DATE = (9, 10)  # not valid yet, not any more


def check_server(host: str, port: int, ca: Path | None, timeout: float = 5.0) -> bool:
    """Tell whether a server is there; one that can never be ours is refused with the reason.

    :param ca: the authority of this client's keys; None for a server without TLS.
    """
    address = join_address(host, port)
    try:
        with socket.create_connection((host, port), timeout) as plain:
            if ca is None:
                return _speaks_http(plain, address)
            with ssl.create_default_context(cafile=ca).wrap_socket(plain, server_hostname=host) as secured:
                return _asked_for_health(secured, host, port)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"{address}: {_distrust(error, host, ca)}") from error
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            raise ConfigError(f"{address}: does not speak TLS; start the server with --keys") from error
        return False
    except OSError:
        return False


def _distrust(error: ssl.SSLCertVerificationError, host: str, ca: Path | None) -> str:
    if error.verify_code in NAME_MISMATCH:
        return (
            f"the server's certificate does not name {host}; use a name it was made for, or renew it on the machine "
            f"that made the keys with: fedfeat keys --out DIR --renew --host {host}"
        )
    if error.verify_code in OUT_OF_DATE:
        return "the server's certificate is out of date; renew it with 'fedfeat keys --renew', or set this clock"
    return f"the server's certificate is not from the authority in {ca}; take the keys of both from the same set"


def _speaks_http(plain: socket.socket, address: str) -> bool:
    plain.sendall(b"GET /health HTTP/1.1\r\nHost: fedfeat\r\nConnection: close\r\n\r\n")
    try:
        first = plain.recv(5)
    except ConnectionResetError:
        first = b""
    if not first.startswith(b"HTTP/"):
        raise ConfigError(f"{address}: speaks TLS; pass this client's keys with --keys")
    return True


def _asked_for_health(secured: ssl.SSLSocket, host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port)
    connection.sock = secured
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except http.client.HTTPException:
        return False
