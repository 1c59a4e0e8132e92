"""Addresses on this machine: free ports, ports that are taken, and who answers."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from pathlib import Path

from fedfeat.engines.flower.supervise import ProcessError

LOOPBACK = "127.0.0.1"


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
            raise ProcessError(f"{address}: cannot be served, {error.strerror}; choose another address") from error


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def answers(host: str, port: int, ca: Path | None, timeout: float = 2.0) -> bool:
    """Tell whether ``GET /health`` at an address gives 200; with an authority, over TLS."""
    scheme = "http" if ca is None else "https"
    context = None if ca is None else ssl.create_default_context(cafile=ca)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"{scheme}://{join_address(host, port)}/health", timeout=timeout) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
