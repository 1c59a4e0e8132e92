"""Shamir's secret sharing: of any ``threshold`` shares the secret can be computed, of fewer nothing is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


def shares_of(secret: bytes, places: Iterable[int], coefficients: bytes) -> dict[int, bytes]:
    """Return a share for every place (from 0): values of a polynomial that is the secret at zero.

    :param coefficients: random bytes, ``SHARE_BYTES`` for each share that is needed beyond the first.
    """
    cut = [coefficients[at : at + SHARE_BYTES] for at in range(0, len(coefficients), SHARE_BYTES)]
    polynomial = [int.from_bytes(secret), *(int.from_bytes(part) % PRIME for part in cut)]
    return {place: _value(polynomial, place + 1).to_bytes(SHARE_BYTES) for place in places}


def secret_from(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret that as many shares as the threshold hold; None if they do not belong together."""
    secret = 0
    for place, share in shares.items():
        above = below = 1
        for other in shares:
            if other != place:
                above = above * (other + 1) % PRIME
                below = below * (other - place) % PRIME
        secret += int.from_bytes(share) * above * pow(below, -1, PRIME)
    secret %= PRIME
    return secret.to_bytes(SECRET_BYTES) if secret < 256**SECRET_BYTES else None


def _value(polynomial: list[int], at: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * at + coefficient) % PRIME
    return value
