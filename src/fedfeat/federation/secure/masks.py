"""Keys and masks, from the primitives of the package ``cryptography``: X25519, HKDF, AES-CTR and AES-GCM."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedfeat.federation.secure.sums import Numbers

KEY_BYTES = 32
TAG_BYTES = 16  # by which a sealed message is longer
ONCE = bytes(12)  # every key seals one message


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def public_key(private: bytes) -> bytes:
    """Return the public half of a key pair; any 32 bytes are a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key that the owners of two key pairs, and nobody else, can compute."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derived(shared, purpose)


def stream(key: bytes, size: int) -> bytes:
    """Return pseudo-random bytes."""
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(size))


def add_mask(numbers: Numbers, key: bytes, sign: int) -> None:
    """Add the mask of a key to integers, or take it off again, modulo 2^k and in place."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    for array in numbers.values():
        mask = np.frombuffer(encryptor.update(bytes(array.nbytes)), array.dtype)
        if sign > 0:
            array += mask
        else:
            array -= mask


def sealed(key: bytes, message: bytes) -> bytes:
    """Encrypt the one message of a key."""
    return AESGCM(key).encrypt(ONCE, message, None)


def opened(key: bytes, message: bytes) -> bytes:
    """Decrypt the one message of a key; one that was changed raises ``InvalidTag``."""
    return AESGCM(key).decrypt(ONCE, message, None)
