"""Pairwise masks with recovery of drop-outs (Bonawitz et al., CCS 2017): what one client computes, and the server.

A client's reply gets a mask of its own and one with every peer, which the peer takes off. The secrets of both kinds
are shared among all clients, so that the masks of those who stayed and the pairs of those who left can be computed by
any ``threshold`` of them. Nobody gives a share of both kinds for the same client: with both the reply would be bare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag

from fedfeat.federation.secure.masks import (
    KEY_BYTES,
    TAG_BYTES,
    add_mask,
    agreed,
    derived,
    opened,
    public_key,
    sealed,
    stream,
)
from fedfeat.federation.secure.shamir import SHARE_BYTES, secret_from, shares_of
from fedfeat.federation.secure.sums import Numbers, UnusableSum

Keys = Mapping[int, bytes]  # by client: what ``ClientSession.advertised`` returns
ADVERTISED_BYTES = 3 * KEY_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
SEALING, MASKING, OWN = "sealing", "masking", "own mask"  # the secrets of a session


@dataclass(frozen=True)
class ClientSession:
    """One client in one sum. All its secrets derive from a seed, so the same questions get the same answers."""

    seed: bytes
    context: bytes  # names the sum: no key serves another one
    client: int

    def advertised(self) -> bytes:
        """Return the public keys for sealing and for masks, and a commitment to the own mask."""
        return public_key(self._secret(SEALING)) + public_key(self._secret(MASKING)) + commitment(self._secret(OWN))

    def sealed_shares(self, keys: Keys, threshold: int) -> dict[int, bytes]:
        """Return for every peer its shares of the two secrets, which only that peer can open."""
        own, masking = self._shares(OWN, keys, threshold), self._shares(MASKING, keys, threshold)
        return {
            peer: sealed(self._sealing_key(keys, self.client, peer), own[peer] + masking[peer])
            for peer in keys
            if peer != self.client
        }

    def mask(self, numbers: Numbers, keys: Keys, peers: Collection[int]) -> None:
        """Add the own mask and one with every peer to a reply, in place."""
        add_mask(numbers, self._secret(OWN), +1)
        for peer in peers:
            if peer != self.client:
                key = agreed(self._secret(MASKING), _masking(keys[peer]), _pair(self.context, self.client, peer))
                add_mask(numbers, key, _sign(self.client, peer))

    def share_of(self, peer: int, keys: Keys, threshold: int, message: bytes, *, stayed: bool) -> bytes:
        """Return one share of a peer's secrets: of its own mask if it stayed, else of its pairwise masks.

        :param message: what the peer sealed for this client; one that it did not gives a share of nothing.
        """
        if peer == self.client:
            return self._shares(OWN, keys, threshold)[peer]
        try:
            both = opened(self._sealing_key(keys, peer, self.client), message)
        except InvalidTag:
            return bytes(SHARE_BYTES)
        return both[:SHARE_BYTES] if stayed else both[SHARE_BYTES:]

    def _secret(self, name: str) -> bytes:
        return derived(self.seed, name.encode())

    def _shares(self, name: str, keys: Keys, threshold: int) -> dict[int, bytes]:
        random = stream(self._secret(f"shares of {name}"), (threshold - 1) * SHARE_BYTES)
        return shares_of(self._secret(name), keys, random)

    def _sealing_key(self, keys: Keys, sender: int, receiver: int) -> bytes:
        peer = receiver if sender == self.client else sender
        purpose = b"%s seals %d to %d" % (self.context, sender, receiver)
        return agreed(self._secret(SEALING), keys[peer][:KEY_BYTES], purpose)


def remove_masks(
    total: Numbers,
    context: bytes,
    keys: Keys,
    peers: Collection[int],
    survivors: Collection[int],
    shares: Mapping[int, Mapping[int, bytes]],
    threshold: int,
) -> None:
    """Take the masks off the sum of the survivors' replies, in place.

    :param peers: who masked its reply with whom, survivors or not.
    :param shares: by client that gave them, by client whose secret they belong to.
    """
    for client in sorted(peers):
        given = {k: of[client] for k, of in shares.items() if client in of}
        if client in survivors:
            add_mask(total, _recovered(client, given, threshold, commitment, keys[client][2 * KEY_BYTES :]), -1)
            continue
        secret = _recovered(client, given, threshold, public_key, _masking(keys[client]))
        for other in survivors:
            key = agreed(secret, _masking(keys[other]), _pair(context, client, other))
            add_mask(total, key, -_sign(other, client))


def are_keys(advertised: bytes) -> bool:
    """Tell whether others can agree on a secret with both of these keys."""
    try:
        return all(agreed(bytes(range(KEY_BYTES)), k, b"") for k in (advertised[:KEY_BYTES], _masking(advertised)))
    except ValueError:
        return False


def commitment(secret: bytes) -> bytes:
    """Return a hash by which a recovered secret is recognised."""
    return hashlib.sha256(b"own mask" + secret).digest()


def _recovered(
    client: int, shares: Mapping[int, bytes], threshold: int, seen: Callable[[bytes], bytes], advertised: bytes
) -> bytes:
    """Return the secret behind what a client advertised; a wrong share among more than needed does no harm."""
    places = sorted(shares)
    for start in range(len(places) - threshold + 1):
        secret = secret_from({place: shares[place] for place in places[start : start + threshold]})
        if secret is not None and seen(secret) == advertised:
            return secret
    raise UnusableSum(
        f"the shares of client {client}'s masks do not fit together ({len(places)} came, {threshold} are needed)"
    )


def _masking(advertised: bytes) -> bytes:
    return advertised[KEY_BYTES : 2 * KEY_BYTES]


def _pair(context: bytes, one: int, other: int) -> bytes:
    return b"%s masks %d and %d" % (context, min(one, other), max(one, other))


def _sign(client: int, peer: int) -> int:
    return 1 if client < peer else -1
