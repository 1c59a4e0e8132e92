"""Shamir's shares: enough of them give the secret, whichever they are; fewer leave every secret possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedfeat.federation.secure.shamir import PRIME, SHARE_BYTES, secret_from, shares_of


@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.data())
def test_any_shares_that_are_enough_give_the_secret(secret: bytes, threshold: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 500), min_size=threshold, max_size=12, unique=True))
    random = data.draw(st.binary(min_size=(threshold - 1) * SHARE_BYTES, max_size=(threshold - 1) * SHARE_BYTES))
    shares = shares_of(secret, places, random)
    chosen = data.draw(st.permutations(places))[:threshold]
    assert secret_from({k: shares[k] for k in chosen}) == secret


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(min_size=66, max_size=66))
def test_one_share_too_few_fits_every_secret(secret: bytes, other: bytes, random: bytes) -> None:
    """With two shares needed, one share is that of any other secret too, for a line that exists."""
    share = shares_of(secret, [4], random)[4]
    slope = (int.from_bytes(share) - int.from_bytes(other)) * pow(5, -1, PRIME) % PRIME
    assert shares_of(other, [4], slope.to_bytes(SHARE_BYTES))[4] == share


def test_a_wrong_share_does_not_pass_for_a_right_one() -> None:
    shares = shares_of(bytes(range(32)), range(3), bytes(range(66)) * 2)
    assert secret_from(shares) == bytes(range(32))
    assert secret_from({**shares, 1: shares[2]}) != bytes(range(32))
    assert secret_from({0: shares[0], 1: shares[1]}) != bytes(range(32))
