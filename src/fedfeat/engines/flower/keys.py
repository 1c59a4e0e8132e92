"""The keys of a federation as folders, one for each machine.

DIR/authority/    ca.key ca.crt                      stays with whoever makes keys, best offline
DIR/server/       ca.crt server.crt server.key       goes to the server
           clients/NAME.pub                          who may join, and until when
DIR/clients/NAME/ ca.crt NAME.key NAME.pub           goes to that client
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import disk_errors
from fedfeat.engines.flower import certificates
from fedfeat.engines.flower.client_keys import WatchedKeys, read_public, until

SERVER_DAYS = 825
CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Certificates:
    """What a server needs for TLS: the authority that clients trust, its own certificate and private key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerKeys:
    """What a server's folder holds: its certificates, and the public keys (PEM) of the clients that may join."""

    certificates: Certificates
    watched: WatchedKeys

    @property
    def clients(self) -> dict[str, bytes]:
        """Who may join now; files may be added, removed or marked as revoked at any time."""
        return self.watched.valid()


@dataclass(frozen=True)
class ClientKeys:
    """What a client's folder holds: its name, the authority that it trusts, its own private key."""

    name: str
    ca: Path
    key: Path
    expires: datetime.datetime | None = None


def client_names(text: str) -> list[str]:
    """Read ``--clients``: a number gives client-0, client-1, ...; otherwise names, separated by commas."""
    if text.strip().isdecimal():
        count = int(text.strip())
        if not 1 <= count <= 10_000:
            raise ConfigError(f"--clients: expected 1 to 10000 clients, got {count}")
        return [f"client-{index}" for index in range(count)]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not CLIENT_NAME.fullmatch(name):
            raise ConfigError(
                f"--clients: {name!r} cannot be a client's name; use up to 63 letters, digits, '.', '_' and '-', "
                "the first a letter or digit"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"--clients: {', '.join(twice)} named twice; every client needs a key of its own")
    return names


def make_keys(folder: Path, hosts: Sequence[str], clients: Sequence[str], days: int = SERVER_DAYS) -> None:
    """Make a whole set: an authority, a server certificate for the given hosts, a key per client."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not an empty folder; keys are never overwritten, choose another")
    if not hosts:
        raise ConfigError("--host: expected the name or address under which clients reach the server, got none")
    authority_key = certificates.new_key()
    authority = certificates.make_authority(authority_key)
    server_key = certificates.new_key()
    certificate = certificates.make_server_certificate(server_key, hosts, authority, authority_key, days)
    with disk_errors(folder):
        # All or nothing: the set is put together beside its place.
        beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            _write(beside / "authority" / "ca.key", certificates.private_pem(authority_key))
            for owner in ("authority", "server"):
                _write(beside / owner / "ca.crt", authority.public_bytes(serialization.Encoding.PEM))
            _write(beside / "server" / "server.key", certificates.private_pem(server_key))
            _write(beside / "server" / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))
            for name in clients:
                _write_client(beside, name, days)
            if folder.exists():
                folder.rmdir()
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def add_clients(folder: Path, clients: Sequence[str], days: int = SERVER_DAYS) -> None:
    """Add keys of further clients to a set; the ones that are there stay as they are."""
    _need(folder / "server" / "ca.crt", "a set made by 'fedfeat keys'")
    known = [name for name in clients if (folder / "clients" / name).exists() or _public_file(folder, name).exists()]
    if known:
        raise ConfigError(f"{folder}: holds keys of {', '.join(known)} already; remove them first")
    with disk_errors(folder):
        for name in clients:
            _write_client(folder, name, days)


def renew_server(folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS) -> None:
    """Give the server a new key and certificate from the same authority; clients keep what they have."""
    authority_key = _private(folder / "authority" / "ca.key")
    authority = _certificate(folder / "authority" / "ca.crt")
    old = folder / "server" / "server.crt"
    if not hosts:
        names = _certificate(old).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    key = certificates.new_key()
    certificate = certificates.make_server_certificate(key, hosts, authority, authority_key, days)
    with disk_errors(folder):
        for path, content in (
            (old.with_name("server.key"), certificates.private_pem(key)),
            (old, certificate.public_bytes(serialization.Encoding.PEM)),
        ):
            fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            _write(fresh, content)
            fresh.replace(path)


def read_server_keys(folder: Path) -> ServerKeys:
    """Open a server's folder and check that its parts fit together."""
    where = "the folder 'server' of a set made by 'fedfeat keys'"
    files = [_need(folder / name, where) for name in ("ca.crt", "server.crt", "server.key")]
    authority, certificate, key = _certificate(files[0]), _certificate(files[1]), _private(files[2])
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{files[2]}: not the key of {files[1]}; copy both from the same set")
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception as error:
        raise ConfigError(f"{files[1]}: not signed by {files[0]}; copy both from the same set") from error
    if not [read_public(path) for path in sorted((folder / "clients").glob("*.pub"))]:
        raise ConfigError(f"{folder / 'clients'}: no public key (*.pub), so nobody could join; add clients' keys")
    return ServerKeys(Certificates(*files), WatchedKeys(folder.absolute() / "clients"))


def read_client_keys(folder: Path) -> ClientKeys:
    """Open a client's folder; its one private key names the client."""
    where = "the folder of one client in a set made by 'fedfeat keys'"
    ca = _need(folder / "ca.crt", where)
    keys = sorted(folder.glob("*.key"))
    if len(keys) != 1:
        raise ConfigError(f"{folder}: expected one private key (*.key), found {len(keys)}; this must be {where}")
    _certificate(ca)
    _private(keys[0])
    public = keys[0].with_suffix(".pub")
    expires = read_public(public).expires if public.exists() else None
    return ClientKeys(keys[0].stem, ca, keys[0], expires)


def _write_client(folder: Path, name: str, days: int) -> None:
    key = certificates.new_key()
    public = certificates.public_openssh(key, f"{name} {until(days)}")
    _write(folder / "clients" / name / f"{name}.key", certificates.private_openssh(key))
    _write(folder / "clients" / name / "ca.crt", (folder / "server" / "ca.crt").read_bytes())
    _write(folder / "clients" / name / f"{name}.pub", public)
    _write(_public_file(folder, name), public)


def _public_file(folder: Path, name: str) -> Path:
    return folder / "server" / "clients" / f"{name}.pub"


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, in folders that only the owner can enter."""
    for parent in reversed([parent for parent in path.parents if not parent.exists()]):
        parent.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _need(path: Path, where: str) -> Path:
    if not path.is_file():
        raise ConfigError(f"{path}: missing; expected {where}")
    return path


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_need(path, "a certificate").read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: not a certificate in PEM form; copy it again from the set of keys") from error


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    content = _need(path, "a private key").read_bytes()
    load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
    try:
        key = load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a private key without a passphrase; make keys with 'fedfeat keys'") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected an elliptic-curve key; make keys with 'fedfeat keys'")
    if os.name == "posix" and path.stat().st_mode & 0o007:
        raise ConfigError(f"{path}: every account on this machine can read this private key; run: chmod 600 {path}")
    return key
