"""The one exchange: whatever crosses between server and clients goes through here, and is counted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload, value_bytes
from fedfeat.federation.outcome import Outcome, check_quorum

NO_REPLY = Lost("missing", "no reply")


class Carrier(Protocol):
    """What an engine offers: ask clients to run an op, and yield what came of it in the order of their ids."""

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Run ``op`` on each client; a client that fails or does not answer in time is ``Lost``."""


class Traffic:
    """Bytes sent so far, by direction, op and entry."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts or {})

    def add(self, direction: str, op: str, payload: Payload) -> None:
        """Count one payload; ``direction`` is ``up`` (to the server) or ``down``."""
        for key, value in payload.items():
            self.counts[f"{direction}/{op}/{key}"] += value_bytes(value)

    def total(self, direction: str) -> int:
        """Return all bytes of a direction."""
        return sum(size for key, size in self.counts.items() if key.startswith(direction + "/"))


class Exchange:
    """Carries requests and replies between the server and clients, through whatever engine runs them.

    :param quorum: share of the asked clients that must reply; fewer end the run with ``TooFewClients``.
    """

    def __init__(self, carrier: Carrier, traffic: Traffic | None = None, *, quorum: float = 1.0) -> None:
        self.carrier = carrier
        self.traffic = traffic or Traffic()
        self.quorum = quorum
        self.outcomes: list[Outcome] = []  # of the exchanges since ``take_outcomes``

    def __call__(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Ask clients and yield ``(client, reply)`` of those that replied, in the order of client ids.

        Replies come one at a time, so the server can add them up without holding them all; tensors of a reply are
        valid until the next one is taken. Who failed or is missing is noted in ``outcomes``.
        """
        outcome = Outcome(op, len(requests))
        self.outcomes.append(outcome)
        for request in requests.values():
            self.traffic.add("down", op, request)
        for client, reply in self.carrier.ask(op, requests):
            if isinstance(reply, Lost):
                outcome.lost[client] = reply
                continue
            outcome.replied.append(client)
            self.traffic.add("up", op, reply)
            yield client, reply
        for client in set(requests) - set(outcome.replied) - set(outcome.lost):
            outcome.lost[client] = NO_REPLY
        check_quorum(outcome, self.quorum)

    def gather(self, op: str, requests: Mapping[int, Payload]) -> dict[int, Payload]:
        """Ask clients and return all replies at once; for small replies and for those that are copies."""
        return dict(self(op, requests))

    def take_outcomes(self) -> list[Outcome]:
        """Return what became of the exchanges since the last call."""
        taken, self.outcomes = self.outcomes, []
        return taken
