"""Addresses of servers: free ports on this machine, and a look at a server before a client starts."""

from __future__ import annotations

import base64
import socket
import ssl
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedfeat.core.errors import ConfigError, one_line
from fedfeat.engines.flower.client_keys import REFUSED

LOOPBACK = "127.0.0.1"
NAME_MISMATCH = (62, 64)  # OpenSSL's codes: host name, IP address
OUT_OF_DATE = (9, 10)  # not valid yet, not any more
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, separator, port = text.rpartition(":")
    if not (separator and host and port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"{text!r}: expected an address such as fl.example.org:9092")
    return host.strip("[]"), int(port)


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that nobody listens on right now."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def need_free(host: str, port: int) -> None:
    """Refuse a port that somebody listens on; whoever it is would otherwise be taken for ours."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            address = join_address(host, port)
            raise ConfigError(f"{address}: cannot be served, {error.strerror}; choose another address") from error


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    return socket.create_server((host, port), family=_family(host), backlog=512)


def is_healthy(host: str, port: int, ca: Path | None) -> bool:
    """Tell whether ``GET /health`` at an address gives 200; with an authority, over TLS."""
    try:
        return _health(host, port, ca, timeout=2.0)
    except httpx.TransportError:
        return False


def check_server(host: str, port: int, ca: Path | None) -> bool:
    """Tell whether a server is there; one that waiting cannot change is refused with the reason.

    :param ca: the authority of this client's keys; None for a server without TLS.
    """
    address = join_address(host, port)
    try:
        return _health(host, port, ca, timeout=5.0)
    except (httpx.RemoteProtocolError, httpx.ReadError) as error:
        if ca is None:
            raise ConfigError(f"{address}: speaks TLS; pass this client's keys with --keys") from error
    except httpx.ConnectError as error:
        cause = _tls_error(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise ConfigError(f"{address}: {_distrust(cause, host, ca)}") from error
        if cause is not None and cause.reason in NOT_TLS:
            raise ConfigError(f"{address}: does not speak TLS; start the server with --keys") from error
    except httpx.TransportError:
        pass
    return False


def key_refusal(server: str, ca: Path | None, key: Path | None) -> str | None:
    """Return why a server refuses this client's key; None if it does not, or does not say."""
    if ca is None or key is None:
        return None
    public = load_ssh_private_key(key.read_bytes(), None).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    headers = {"flwr-public-key": base64.b64encode(pem).decode()}
    try:
        with httpx.Client(verify=ssl.create_default_context(cafile=ca), trust_env=False, timeout=10.0) as asking:
            answer = asking.post(f"https://{server}/v1/fleet/pull-messages", headers=headers)
    except httpx.TransportError:
        return None
    return one_line(answer.text.strip()) if answer.status_code == 401 and answer.text.startswith(REFUSED) else None


def _health(host: str, port: int, ca: Path | None, timeout: float) -> bool:
    scheme = "http" if ca is None else "https"
    verify = ca is not None and ssl.create_default_context(cafile=ca)
    url = f"{scheme}://{join_address(host, port)}/health"
    return httpx.get(url, verify=verify, timeout=timeout, trust_env=False).status_code == 200


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error below an error of the HTTP library."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _distrust(error: ssl.SSLCertVerificationError, host: str, ca: Path | None) -> str:
    if error.verify_code in NAME_MISMATCH:
        return (
            f"the server's certificate does not name {host}; use a name it was made for, or renew it on the machine "
            f"that made the keys with: fedfeat keys --out DIR --renew --host {host}"
        )
    if error.verify_code in OUT_OF_DATE:
        return "the server's certificate is out of date; renew it with 'fedfeat keys --renew', or set this clock"
    return f"the server's certificate is not from the authority in {ca}; take the keys of both from the same set"
