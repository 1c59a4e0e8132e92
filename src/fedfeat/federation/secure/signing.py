"""Signatures on the keys of a sum, so that the server cannot put keys of its own in the place of a client's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedfeat.core.errors import ConfigError, Refusal

HALF = 66  # bytes of each of the two numbers of a signature, whatever the curve
SIGNATURE_BYTES = 2 * HALF


@dataclass(frozen=True)
class Identity:
    """Who a client is to its peers, and who they are to it."""

    key: Path | None = None  # its private key, in OpenSSH form
    peers: Path | None = None  # folder with the public keys (*.pub) of all that it adds up with; None: of anybody

    def signature(self, message: bytes) -> bytes:
        """Sign a message; without a key the signature is empty."""
        if self.key is None:
            return bytes(SIGNATURE_BYTES)
        private = load_ssh_private_key(self.key.read_bytes(), None)
        assert isinstance(private, EllipticCurvePrivateKey), f"{self.key}: expected an elliptic-curve key"
        numbers = decode_dss_signature(private.sign(message, ECDSA(SHA384())))
        return b"".join(number.to_bytes(HALF) for number in numbers)

    def check(self, signed: Mapping[int, tuple[bytes, bytes]]) -> None:
        """Refuse messages of which one is not signed by a peer, or two by the same; by client, with signatures."""
        if self.peers is None:
            return
        left = read_peers(self.peers)
        for client, (message, signature) in sorted(signed.items()):
            name = next((name for name, key in left.items() if _is_signed(message, signature, key)), None)
            if name is None:
                raise Refusal(f"secure aggregation: the keys of client {client} are not signed by a peer of the policy")
            del left[name]


def read_peers(folder: Path) -> dict[str, EllipticCurvePublicKey]:
    """Return the public keys in a folder by name."""
    keys = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except ValueError:
            key = None
        if not isinstance(key, EllipticCurvePublicKey):
            raise ConfigError(f"{path}: expected an elliptic-curve public key in OpenSSH form, made by 'fedfeat keys'")
        keys[path.stem] = key
    if not keys:
        raise ConfigError(f"{folder}: expected the public keys (*.pub) of a masked sum's clients, and found none")
    return keys


def _is_signed(message: bytes, signature: bytes, key: EllipticCurvePublicKey) -> bool:
    numbers = int.from_bytes(signature[:HALF]), int.from_bytes(signature[HALF:])
    try:
        key.verify(encode_dss_signature(*numbers), message, ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True
