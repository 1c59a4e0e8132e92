"""Randomness has an address: every draw is a function of (seed, purpose, where), never of what was drawn before.

So two methods see the same split, a resumed run equals an uninterrupted one, the order of clients does not
matter, and engines agree.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_at(seed: int, purpose: str, *where: int) -> np.random.SeedSequence:
    """Return the seed sequence that lives at an address; ``where`` is (task, round, client, ...) as needed."""
    digest = hashlib.sha256(purpose.encode()).digest()
    return np.random.SeedSequence([seed, int.from_bytes(digest[:8], "little"), *where])


def rng_at(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Return a fresh generator for one address: the same address always gives the same draws."""
    return np.random.Generator(np.random.PCG64(seed_at(seed, purpose, *where)))


def int_at(seed: int, purpose: str, *where: int) -> int:
    """Return one 63-bit integer for an address, for libraries that want a plain seed."""
    return int(seed_at(seed, purpose, *where).generate_state(1, np.uint64)[0] >> np.uint64(1))
