"""The exchange under secure aggregation: all replies to an operation become one, the sum of them.

In a simulation replies are rounded and added up as clients would. In a federation they come masked, and only their sum
is opened (``MaskedExchange``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from fedfeat.algorithm.engine import DropOut, Engine
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, moved
from fedfeat.federation.exchange import Exchange, ExchangeOutcome, Traffic, check_quorum
from fedfeat.federation.screen import TRAIN, fault_of
from fedfeat.federation.secure.sums import (
    FEWEST,
    Layout,
    Numbers,
    Sums,
    UnusableSum,
    added,
    check_norm,
    check_sum,
    decoded,
    encoded,
    of_several,
    to_payload,
)
from fedfeat.scenario import Scenario

JOINED = -1  # whose reply the sum is: everybody's
log = logging.getLogger("fedfeat.server")


class SummedExchange(Exchange):
    """Yields one reply of all clients together, where an operation is answered in sums."""

    def __init__(self, engine: Engine, config: Config, traffic: Traffic) -> None:
        super().__init__(engine, traffic, quorum=config.federation.quorum)
        self.engine, self.privacy = engine, config.privacy
        self.sums = Sums(config, engine.method, private=engine.dataset.private)

    def __call__(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Ask clients and yield what their replies add up to; a sum that cannot be used is left out."""
        if op not in self.sums.ops or not requests:
            yield from super().__call__(op, requests)
            return
        request = requests[min(requests)]
        layout = self.sums.layout(op, request, self.engine.reply_sizes(min(requests)))
        outcome = ExchangeOutcome(op, len(requests))
        self.outcomes.append(outcome)
        try:
            total = self.total(op, requests, layout, outcome)
            check_sum(total, layout, len(outcome.replied))
            joined = decoded(total, request, layout)
            self._check(op, request, joined, outcome.replied)
        except UnusableSum as error:
            outcome.discarded = str(error)
            log.warning("the sum of the replies to %s cannot be used: %s", op, error)
        else:
            yield JOINED, moved(joined, self.engine.device)

    def total(self, op: str, requests: Mapping[int, Payload], layout: Layout, outcome: ExchangeOutcome) -> Numbers:
        """Return the sum over the clients that replied, which are noted in the outcome."""
        total: Numbers | None = None
        for client, reply in self.ask(op, requests, outcome):
            try:
                numbers = encoded(reply, requests[client], layout)
            except DropOut as drop_out:
                outcome.lost[client] = drop_out.lost
                continue
            self.traffic.add("up", op, to_payload(numbers))
            outcome.replied.append(client)
            total = added(total, numbers)
        check_quorum(outcome, self.quorum, max(self.sums.threshold(len(requests)), self.sums.fewest))
        assert total is not None, "more than half of the clients replied"
        return total

    def _check(self, op: str, request: Payload, joined: Payload, clients: Sequence[int]) -> None:
        """Refuse a sum that no honest clients can have sent together."""
        known = [self.engine.reply_sizes(k) for k in clients]
        sizes = {**known[0], "n": sum(size["n"] for size in known)}
        fault = fault_of(op, request, joined, of_several(self.sums.sends, sizes, len(clients)), sizes)
        if fault is not None:
            raise UnusableSum(fault)
        if op == TRAIN and self.privacy.clip is not None:
            check_norm(joined, request, sizes["trained"], self.privacy.clip, self.privacy.noise or 0.0)


def check_rounds(config: Config, scenario: Scenario) -> None:
    """Refuse a run in which some sums would be of too few clients, or a quorum that no sum can keep to."""
    settings, quorum = config.privacy, config.federation.quorum
    least = 0.5 if settings.threshold is None else settings.threshold
    if quorum < least:
        raise ConfigError(
            f"federation.quorum: {quorum:g} of the clients would do, and a masked sum needs at least {least:g} of them "
            f"(privacy.threshold); set federation.quorum = {least:g} or more"
        )
    fewest = settings.fewest_clients or FEWEST
    for task in range(scenario.num_tasks):
        asked = scenario.participants_per_round(task)
        if asked < fewest:
            raise ConfigError(
                f"scenario.participation: the number of clients in a round of task {task + 1} is {asked}, and a masked "
                f"sum needs at least {fewest} (privacy.fewest_clients); let more clients take part"
            )
