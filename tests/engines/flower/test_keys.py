"""Sets of keys: complete, private, never overwritten, and refused when their parts do not fit."""

from __future__ import annotations

import base64
import datetime
import re
import shutil
import ssl
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.cli import app
from fedfeat.core.errors import ConfigError
from fedfeat.engines.flower import client_keys, keys


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "keys"
    keys.make_keys(folder, ["fl.example.org", "10.1.2.3"], ["ward-a", "ward-b"])
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_a_set_is_complete_and_readable_by_its_owner_only(made: Path) -> None:
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert files == {
        "authority/ca.key",
        "authority/ca.crt",
        "server/ca.crt",
        "server/server.crt",
        "server/server.key",
        "server/clients/ward-a.pub",
        "server/clients/ward-b.pub",
        "clients/ward-a/ca.crt",
        "clients/ward-a/ward-a.key",
        "clients/ward-a/ward-a.pub",
        "clients/ward-b/ca.crt",
        "clients/ward-b/ward-b.key",
        "clients/ward-b/ward-b.pub",
    }
    for path in [made, *made.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_server_certificate_names_every_host_and_satisfies_a_strict_check(made: Path) -> None:
    certificate = x509.load_pem_x509_certificate((made / "server/server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1", "::1"]
    context = ssl.create_default_context(cafile=made / "server/ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "server/server.crt", made / "server/server.key")
    assert _handshake(context, server, "fl.example.org")
    assert _handshake(context, server, "10.1.2.3")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        _handshake(context, server, "evil.example.org")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """Shake hands in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=name)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        done = 0
        for side in (here, there):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done == 2:
            return True
    return False


def test_both_sides_read_their_folders_and_the_keys_belong_together(made: Path) -> None:
    server = keys.read_server_keys(made / "server")
    assert list(server.clients) == ["ward-a", "ward-b"]
    for name, public in server.clients.items():
        client = keys.read_client_keys(made / "clients" / name)
        assert client.name == name
        private = serialization.load_ssh_private_key(client.key.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.curve.name == "secp384r1"
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        assert private.public_key().public_bytes(serialization.Encoding.PEM, form) == public


def test_a_set_is_never_overwritten(copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="never overwritten"):
        keys.make_keys(copy, ["a"], ["b"])
    with pytest.raises(ConfigError, match="holds keys of ward-b already"):
        keys.add_clients(copy, ["ward-c", "ward-b"])
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_clients_can_be_added_and_the_old_ones_stay(copy: Path) -> None:
    before = keys.read_server_keys(copy / "server").clients
    keys.add_clients(copy, ["ward-c"])
    after = keys.read_server_keys(copy / "server").clients
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"ward-c"}
    assert keys.read_client_keys(copy / "clients" / "ward-c").name == "ward-c"


def test_a_renewed_certificate_keeps_hosts_and_authority(copy: Path) -> None:
    old = x509.load_pem_x509_certificate((copy / "server/server.crt").read_bytes())
    keys.renew_server(copy, [], days=7)
    new = x509.load_pem_x509_certificate((copy / "server/server.crt").read_bytes())
    assert new.public_key() != old.public_key()
    assert 6 <= (new.not_valid_after_utc - new.not_valid_before_utc).days <= 8
    oldest, newest = (c.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for c in (old, new))
    assert set(oldest) == set(newest)
    keys.read_server_keys(copy / "server")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "server/server.key").unlink(), "server.key: missing"),
        (lambda f: (f / "server/server.crt").write_text("nonsense"), "not a certificate"),
        (lambda f: (f / "server/server.key").write_text("nonsense"), "not a private key"),
        (lambda f: shutil.copy(f / "authority/ca.key", f / "server/server.key"), "not the key of"),
        (lambda f: shutil.copy(f / "other/server/ca.crt", f / "server/ca.crt"), "not signed by"),
        (lambda f: (f / "server/clients/ward-a.pub").write_text("nonsense"), "not a public key"),
        (lambda f: shutil.rmtree(f / "server/clients"), "nobody could join"),
        (lambda f: (f / "server/server.key").chmod(0o644), "every account on this machine can read"),
    ],
)
def test_a_damaged_server_folder_is_one_sentence(copy: Path, damage: object, words: str) -> None:
    keys.make_keys(copy / "other", ["a"], ["b"])
    damage(copy)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=words):
        keys.read_server_keys(copy / "server")


def test_a_damaged_client_folder_is_one_sentence(copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.crt: missing"):
        keys.read_client_keys(copy / "clients")
    mine = copy / "clients" / "ward-a"
    shutil.copy(copy / "clients/ward-b/ward-b.key", mine)
    with pytest.raises(ConfigError, match=r"expected one private key .* found 2"):
        keys.read_client_keys(mine)


def request_of(folder: Path, name: str) -> dict[bytes, bytes]:
    """Return the header by which a client's requests say whose they are."""
    pem = client_keys.read_public(folder / "clients" / name / f"{name}.pub").pem
    return {b"flwr-public-key": base64.b64encode(pem)}


def expire(path: Path, when: str) -> None:
    path.write_bytes(re.sub(rb"expires=\S+", b"expires=" + when.encode(), path.read_bytes()))


@pytest.mark.parametrize("whole", [True, False])
def test_a_revoked_key_is_refused_with_its_reason_while_others_are_not(copy: Path, whole: bool) -> None:
    watched = keys.read_server_keys(copy / "server").watched
    assert watched.valid().keys() == {"ward-a", "ward-b"}
    folder = copy if whole else copy / "server"
    told = CliRunner().invoke(
        app, ["keys", "--out", str(folder), "--revoke", "--clients", "ward-b", "--reason", "lost\nlaptop\x1b"]
    )
    assert told.exit_code == 0, told.output
    assert watched.valid().keys() == {"ward-a"}
    assert watched.refusal(request_of(copy, "ward-b")) == "this client's key was revoked: lost laptop"
    assert watched.refusal(request_of(copy, "ward-a")) is None
    assert watched.refusal({}) is None
    assert watched.refusal({b"flwr-public-key": b"\xff"}) is None
    (copy / "server/clients/ward-b.pub").write_text("half a file")
    assert watched.refusal(request_of(copy, "ward-b")) is not None, "damage does not undo it"
    with pytest.raises(ConfigError, match="holds no public key of 'ward-z'"):
        client_keys.revoke(copy, ["ward-z"], "")


def test_a_key_expires_and_can_be_given_more_time(copy: Path) -> None:
    watched, public = keys.read_server_keys(copy / "server").watched, copy / "server/clients/ward-a.pub"
    known = client_keys.read_public(public).expires
    assert known is not None
    assert 824 <= (known - datetime.datetime.now(datetime.UTC)).days <= 825
    assert keys.read_client_keys(copy / "clients/ward-a").expires == known
    expire(public, "2020-01-02T00:00:00+00:00")
    assert watched.valid().keys() == {"ward-b"}
    assert "expired on 2020-01-02" in (watched.refusal(request_of(copy, "ward-a")) or "")
    done = CliRunner().invoke(app, ["keys", "--out", str(copy), "--renew", "--clients", "ward-a", "--days", "7"])
    assert done.exit_code == 0, done.output
    assert watched.valid().keys() == {"ward-a", "ward-b"}
    assert watched.valid()["ward-a"] == client_keys.read_public(copy / "clients/ward-a/ward-a.pub").pem
    public.write_bytes(re.sub(rb" expires=\S+", b"", public.read_bytes()))
    assert client_keys.read_public(public).expires is None, "a key from before has no date"
    expire(copy / "server/clients/ward-b.pub", "soon")
    with pytest.raises(ConfigError, match="not a public key"):
        keys.read_server_keys(copy / "server")


def test_numbers_and_names_of_clients() -> None:
    assert keys.client_names("3") == ["client-0", "client-1", "client-2"]
    assert keys.client_names("a, b-1,c.d_e") == ["a", "b-1", "c.d_e"]
    for wrong in ("0", "10001", "", "a,,b", "a,a", "../a", "-a", ".a", "a b", "ä", "a" * 64, "a/b"):
        with pytest.raises(ConfigError, match="--clients"):
            keys.client_names(wrong)


@given(st.text(max_size=20))
def test_no_accepted_name_leaves_its_folder(text: str) -> None:
    try:
        names = keys.client_names(text)
    except ConfigError:
        return
    for name in names:
        assert (Path("/keys/clients") / name).resolve().parent == Path("/keys/clients")


def test_the_command_makes_a_set_and_says_what_goes_where(tmp_path: Path) -> None:
    out = tmp_path / "set"
    result = CliRunner().invoke(app, ["keys", "--out", str(out), "--host", "fl.example.org", "--clients", "2"])
    assert result.exit_code == 0, result.output
    plain = "".join(result.output.split())
    for folder in (out / "server", out / "clients" / "client-0", out / "clients" / "client-1", out / "authority"):
        assert str(folder) in plain
    assert keys.read_server_keys(out / "server").clients.keys() == {"client-0", "client-1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "a"], "--clients"),
        (["--clients", "2"], "--host"),
        (["--host", "a:9092", "--clients", "2"], "without a port"),
        (["--host", "https://a", "--clients", "2"], "without a port"),
        (["--host", "300.1.1.1", "--clients", "2"], "neither a host name"),
        (["--add", "--clients", "x"], "missing"),
        (["--renew"], "missing"),
        (["--renew", "--add"], "one at a time"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["keys", "--out", str(tmp_path / "set"), *arguments])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert list(tmp_path.iterdir()) == []
