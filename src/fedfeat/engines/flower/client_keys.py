"""Clients' keys on the server: whose they are, until when they hold, and which were revoked.

    clients/NAME.pub      the public key in OpenSSH form; the end of its line says until when it holds
    clients/NAME.revoked  the key is refused from now on; the text says why, and the client is told

Both the server and its gateway look at these files while they run, so neither has to be started again.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fedfeat.core.errors import ConfigError, one_line
from fedfeat.core.files import disk_errors, write_atomically

EXPIRES = re.compile(rb"expires=(\S+)")
REFUSED = "this client's key "  # how the reason of a refusal begins


@dataclass(frozen=True)
class ClientKey:
    """One client's key as the server knows it."""

    pem: bytes
    expires: datetime.datetime | None = None
    revoked: str | None = None

    def refusal(self) -> str | None:
        """Say why the key opens nothing now; None if it does."""
        if self.revoked is not None:
            return f"{REFUSED}was revoked: {self.revoked or 'no reason was given'}"
        if self.expires is not None and datetime.datetime.now(datetime.UTC) >= self.expires:
            return f"{REFUSED}expired on {self.expires:%Y-%m-%d}; ask the server's operator to renew it"
        return None


def read_public(path: Path) -> ClientKey:
    """Read one key, with what lies beside it."""
    try:
        line = path.read_bytes()
        key = serialization.load_ssh_public_key(line)
        found = EXPIRES.search(line)
        expires = None if found is None else datetime.datetime.fromisoformat(found[1].decode()).astimezone(datetime.UTC)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a public key in OpenSSH form; copy it again from the set of keys") from error
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return ClientKey(key.public_bytes(serialization.Encoding.PEM, form), expires, _revoked(path))


def _revoked(path: Path) -> str | None:
    beside = path.with_suffix(".revoked")
    return one_line(beside.read_text(errors="replace").strip(), 200) if beside.exists() else None


class WatchedKeys:
    """The keys of a folder that may change at any time; files are read again when one of them did.

    :param every: seconds between two looks at the folder.
    """

    def __init__(self, folder: Path, every: float = 0.0) -> None:
        self.folder, self.every = folder, every
        self._looked, self._seen = -math.inf, object()
        self._keys: dict[str, ClientKey] = {}

    def keys(self) -> dict[str, ClientKey]:
        """Return the keys as they are now; of a file that cannot be read, such as one being copied, that of before."""
        if time.monotonic() - self._looked < self.every:
            return self._keys
        self._looked = time.monotonic()
        with contextlib.suppress(OSError):
            files: object = sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in os.scandir(self.folder))
            if files != self._seen:
                read = {path.stem: self._read(path) for path in sorted(self.folder.glob("*.pub"))}
                self._keys, self._seen = {name: key for name, key in read.items() if key is not None}, files
        return self._keys

    def _read(self, path: Path) -> ClientKey | None:
        try:
            return read_public(path)
        except ConfigError:
            before = self._keys.get(path.stem)
            return None if before is None else replace(before, revoked=_revoked(path))

    def valid(self) -> dict[str, bytes]:
        """Return who may join now, by name."""
        return {name: key.pem for name, key in self.keys().items() if key.refusal() is None}

    def refusal(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Say why a request signed with a known key must not pass; None where another has to decide."""
        try:
            pem = base64.b64decode(headers.get(b"flwr-public-key", b""))
        except ValueError:
            return None
        return next((key.refusal() for key in self.keys().values() if key.pem == pem), None) if pem else None


def until(days: int) -> str:
    """Return how a public key's line says that it holds for so many days."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return f"expires={end.isoformat(timespec='seconds')}"


def revoke(folder: Path, names: Sequence[str], reason: str) -> list[Path]:
    """Refuse clients' keys from now on, and say why; the folder is a whole set, or a server's part of one."""
    files = [_known(folder, name).with_suffix(".revoked") for name in names]
    with disk_errors(folder):
        for path in files:
            write_atomically(path, (one_line(reason, 200) + "\n").encode())
    return files


def prolong(folder: Path, names: Sequence[str], days: int) -> list[Path]:
    """Let clients' keys hold for so many days from now; the keys themselves stay."""
    files = [_known(folder, name) for name in names]
    with disk_errors(folder):
        for path, name in zip(files, names, strict=True):
            kind, key = path.read_bytes().split()[:2]
            write_atomically(path, b"%s %s %s %s\n" % (kind, key, name.encode(), until(days).encode()))
    return files


def _known(folder: Path, name: str) -> Path:
    for place in (folder / "server" / "clients", folder / "clients"):
        if (place / f"{name}.pub").is_file():
            return place / f"{name}.pub"
    raise ConfigError(f"{folder}: holds no public key of {name!r}; give the set of keys, or the server's folder of it")
