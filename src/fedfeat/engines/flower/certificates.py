"""An authority and a server certificate for TLS, made with the ``cryptography`` package."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfeat.core.errors import ConfigError

AUTHORITY_DAYS = 3650
# A client's clock may be a little behind the machine that makes the certificate.
CLOCK_TOLERANCE = datetime.timedelta(hours=1)
USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh private key on the curve P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def make_authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return the self-signed certificate of a new authority, which may sign servers and nothing below them."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedfeat federation authority")])
    builder = _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return builder.sign(key, hashes.SHA384())


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
    builder = _certificate(subject, authority.subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    return builder.add_extension(identifier, critical=False).sign(authority_key, hashes.SHA384())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as TLS software reads it."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def private_openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a SuperNode reads it."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def public_openssh(key: ec.EllipticCurvePrivateKey, comment: str) -> bytes:
    """Return the public half as one line, the form that ``ssh-keygen`` writes too."""
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form) + f" {comment}\n".encode()


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
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
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in USAGES})


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
