"""Processor seconds and bytes of masked sums, by the number of clients: what a client does, and the server.

    python benchmarks/masks.py [--clients 3,10,50] [--numbers 11173962]

Without messages: keys, shares, masks and their removal alone, for updates as long as a ResNet-18 (45 MB).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedfeat.federation.secure.client import KEYS_BYTES
from fedfeat.federation.secure.protocol import SEALED_BYTES, ClientSession, remove_masks
from fedfeat.federation.secure.shamir import SHARE_BYTES

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return processor seconds, and what came of it."""
    began = time.process_time()
    done = work()
    return time.process_time() - began, done


def measure(clients: int, numbers: int, lost: int) -> str:
    """Return a line: a client's keys and shares, its masks, the server's work, bytes besides the update."""
    sessions = [ClientSession(bytes([k % 256]) * 32, b"benchmark", k) for k in range(clients)]
    keys = {s.client: s.advertised() for s in sessions}
    threshold, survivors = clients // 2 + 1, range(lost, clients)
    sharing, _ = timed(lambda: sessions[0].sealed_shares(keys, threshold))
    update = {"weights": np.zeros(numbers, np.uint32)}
    masking, _ = timed(lambda: sessions[-1].mask(update, keys, list(keys)))
    sealed = {s.client: s.sealed_shares(keys, threshold) for s in sessions}
    shares = {
        u: {v: sessions[u].share_of(v, keys, threshold, sealed[v].get(u, b""), stayed=v in survivors) for v in keys}
        for u in survivors
    }
    total = {"weights": np.zeros(numbers, np.uint32)}
    opening, _ = timed(lambda: remove_masks(total, b"benchmark", keys, list(keys), survivors, shares, threshold))
    up = KEYS_BYTES + (clients - 1) * SEALED_BYTES + clients * SHARE_BYTES
    down = clients * KEYS_BYTES + (clients - 1) * SEALED_BYTES + 3 * 8 * clients
    return f"| {clients} | {lost} | {sharing:.3f} | {masking:.2f} | {opening:.2f} | {up / 1e3:.1f} | {down / 1e3:.1f} |"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", default="3,10,50")
    parser.add_argument("--numbers", type=int, default=11_173_962)
    options = parser.parse_args()
    print("| clients | lost | client: shares (s) | client: masks (s) | server: opening (s) | kB up | kB down |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for clients in map(int, options.clients.split(",")):
        for lost in (0, max(1, clients // 10)):
            print(measure(clients, options.numbers, lost), flush=True)


if __name__ == "__main__":
    main()
