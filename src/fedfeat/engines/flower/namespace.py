"""A network of its own for a server's processes, so that no other account of the machine reaches the SuperLink.

The SuperLink's port has no login. Inside a network namespace of Linux its loopback interface is another one than that
of the machine. Only the socket at which the gateway listens is opened before, in the machine's own network.

It is run as a file, with nothing but the standard library: ``python -I namespace.py FD COMMAND ...`` becomes the
command, in a new namespace where the system allows it. Root may make one; others need user namespaces too.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
STATE, LISTENING = "FEDFEAT_NAMESPACE", "FEDFEAT_LISTENING"  # environment: whether there is one, and the socket
INSIDE = "inside"


def enter_namespace(listening: socket.socket, command: list[str]) -> None:
    """Become a command in a network of its own; without one it still runs, and is told why it has none."""
    os.set_inheritable(listening.fileno(), True)
    helper = [sys.executable, "-I", __file__, str(listening.fileno()), *command]
    os.execv(sys.executable, helper)


def namespace_state() -> str | None:
    """Return ``inside``, or why there is no namespace; None before any was tried."""
    return os.environ.get(STATE)


def inherited_socket() -> int | None:
    """Return the descriptor of the socket that was opened outside."""
    given = os.environ.get(LISTENING)
    return None if given is None else int(given)


def _new_network() -> None:
    """Leave the machine's network for an empty one with a loopback interface."""
    user, group = os.geteuid(), os.getegid()
    if user != 0 or not _unshare(CLONE_NEWNET):
        if not _unshare(CLONE_NEWUSER | CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))


def _unshare(flags: int) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    return sys.platform == "linux" and int(library.unshare(flags)) == 0


def _is_allowed() -> bool:
    """Try it in a process that ends at once: a namespace that is made only by half would be of no use."""
    if not hasattr(os, "fork"):
        return False
    child = os.fork()
    if child == 0:
        try:
            _new_network()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    """Become a command in a new namespace."""
    descriptor, *command = sys.argv[1:]
    os.environ[STATE] = "not allowed here"
    if _is_allowed():
        _new_network()
        os.environ[STATE] = INSIDE
    os.environ[LISTENING] = descriptor
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
