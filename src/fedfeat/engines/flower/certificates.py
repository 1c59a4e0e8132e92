"""An authority and a server certificate for TLS, made with the ``cryptography`` package."""

from __future__ import annotations

import datetime
import inspect
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfeat.core.errors import ConfigError

AUTHORITY_DAYS = 3650
# A client's clock may be a little behind the machine that makes the certificate.
CLOCK_TOLERANCE = datetime.timedelta(hours=1)
USAGES = tuple(inspect.signature(x509.KeyUsage).parameters)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh private key on the curve P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def make_authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return the self-signed certificate of a new authority, which may sign servers and nothing below them."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedfeat federation authority")])
    builder = _certificate(name, name, key.public_key(), AUTHORITY_DAYS, "key_cert_sign", "crl_sign")
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA384()
    )


def make_server_certificate(
    key: ec.EllipticCurvePrivateKey,
    hosts: Iterable[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """Return a certificate for a server that is reached under any of the given names and addresses."""
    names = [_subject_name(host) for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1", "::1"))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedfeat federation server")])
    signer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = _certificate(subject, authority.subject, key.public_key(), days, "digital_signature")
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    for extension in (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer),
    ):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority_key, hashes.SHA384())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as TLS software reads it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def private_openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a SuperNode reads it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_openssh(key: ec.EllipticCurvePrivateKey, comment: str) -> bytes:
    """Return the public half as one line, the form that ``ssh-keygen`` writes too."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {comment}\n".encode()


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, *usages: str
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.KeyUsage(**{usage: usage in usages for usage in USAGES}), critical=True)
    )


def _subject_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not host.isascii() or len(host) > 253 or not all(_is_label(label) for label in labels) or labels[-1].isdigit():
        raise ConfigError(
            f"--host: {host!r} is neither a host name nor an IP address; give what clients type, without a port"
        )
    return x509.DNSName(host)


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and label.replace("-", "a").isalnum() and label[0] != "-" and label[-1] != "-"
