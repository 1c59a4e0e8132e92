"""The one exchange: whatever crosses between server and clients goes through here, and is counted here.

Drop-outs are data, not exceptions: an outcome says who replied, who failed and why, who is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedfeat.algorithm.engine import Fate, Lost
from fedfeat.core.errors import FedfeatError
from fedfeat.core.payload import Payload, copied, value_bytes

Join = Callable[[str, Mapping[int, Payload], Mapping[int, Payload]], Mapping[int, Payload]]
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


class TooFewClients(FedfeatError):
    """An exchange that too few clients answered; the last checkpoint is where the run continues."""


@dataclass
class ExchangeOutcome:
    """One exchange: the clients that were asked and what came of it."""

    op: str
    asked: int
    replied: list[int] = field(default_factory=list)
    lost: dict[int, Lost] = field(default_factory=dict)
    discarded: str = ""  # why what they sent together cannot be used

    @property
    def whole(self) -> bool:
        """Whether every asked client replied, and with something that can be used."""
        return len(self.replied) == self.asked and not self.discarded

    def of(self, fate: Fate) -> dict[str, str]:
        """Return reasons by client, with ids as JSON wants them."""
        return {str(k): lost.reason for k, lost in sorted(self.lost.items()) if lost.fate == fate}

    def record(self) -> dict[str, Any]:
        """Return what events and results say about this exchange."""
        left = {"discarded": self.discarded} if self.discarded else {}
        return {"replied": len(self.replied), "failed": self.of("failed"), "missing": self.of("missing"), **left}


class Exchange:
    """Carries requests and replies between the server and clients, through whatever engine runs them.

    :param quorum: share of the asked clients that must reply; fewer end the run with ``TooFewClients``.
    :param join: changes all replies of an exchange together, before anybody sees them.
    """

    def __init__(
        self, carrier: Carrier, traffic: Traffic | None = None, *, quorum: float = 1.0, join: Join | None = None
    ) -> None:
        self.carrier, self.join = carrier, join
        self.traffic = traffic or Traffic()
        self.quorum = quorum
        self.outcomes: list[ExchangeOutcome] = []  # of the exchanges since ``take_outcomes``

    def __call__(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Ask clients and yield ``(client, reply)`` of those that replied, in the order of client ids.

        Replies come one at a time, so the server can add them up without holding them all; tensors of a reply are
        valid until the next one is taken. Who failed or is missing is noted in ``outcomes``.
        """
        if self.join is None:
            yield from self._replies(op, requests)
            return
        whole = {k: copied(reply) for k, reply in self._replies(op, requests)}
        yield from sorted(self.join(op, requests, whole).items())

    def _replies(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        outcome = ExchangeOutcome(op, len(requests))
        self.outcomes.append(outcome)
        for client, reply in self.ask(op, requests, outcome):
            outcome.replied.append(client)
            self.traffic.add("up", op, reply)
            yield client, reply
        check_quorum(outcome, self.quorum)

    def ask(self, op: str, requests: Mapping[int, Payload], outcome: ExchangeOutcome) -> Iterator[tuple[int, Payload]]:
        """Ask clients, count what is sent down, and yield replies; who is lost is noted in the outcome."""
        for request in requests.values():
            self.traffic.add("down", op, request)
        heard = set()
        for client, reply in self.carrier.ask(op, requests):
            heard.add(client)
            if isinstance(reply, Lost):
                outcome.lost[client] = reply
            else:
                yield client, reply
        for client in set(requests) - heard:
            outcome.lost[client] = NO_REPLY

    def gather(self, op: str, requests: Mapping[int, Payload]) -> dict[int, Payload]:
        """Ask clients and return all replies at once; for small replies and for those that are copies."""
        return dict(self(op, requests))

    def take_outcomes(self) -> list[ExchangeOutcome]:
        """Return what became of the exchanges since the last call."""
        taken, self.outcomes = self.outcomes, []
        return taken


def needed(quorum: float, asked: int) -> int:
    """Return how many of the asked clients must reply: the quorum is a share, rounded up."""
    return math.ceil(quorum * asked - 1e-9)


def check_quorum(outcome: ExchangeOutcome, quorum: float, masked: int = 0) -> None:
    """Refuse to go on with fewer replies than the quorum, or than a masked sum needs."""
    least = max(needed(quorum, outcome.asked), masked)
    if len(outcome.replied) >= least:
        return
    who = "a masked sum needs" if masked == least else "federation.quorum asks for"
    diverged = any(lost.diverged for lost in outcome.lost.values())
    remedy = "training diverged there: start a new run with a lower train.lr" if diverged else "bring clients back"
    raise TooFewClients(
        f"{outcome.op}: {len(outcome.replied)} of {outcome.asked} clients replied, and {who} "
        f"{least} ({_reasons(outcome.lost)}); {remedy}{', or' if diverged else ' and'} resume the run, which repeats "
        "the exchange"
    )


def _reasons(lost: Mapping[int, Lost], limit: int = 3) -> str:
    told = [f"client {k} {v.fate}: {v.reason}" for k, v in sorted(lost.items())]
    return "; ".join(told[:limit]) + (f"; and {len(told) - limit} more" if len(told) > limit else "")
