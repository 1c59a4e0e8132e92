"""What became of an exchange: who replied, who failed and why, who is missing. Drop-outs are data, not exceptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedfeat.algorithm.engine import Fate, Lost
from fedfeat.core.errors import FedfeatError


class TooFewClients(FedfeatError):
    """An exchange that too few clients answered; the last checkpoint is where the run continues."""


@dataclass
class Outcome:
    """One exchange: the clients that were asked and what came of it."""

    op: str
    asked: int
    replied: list[int] = field(default_factory=list)
    lost: dict[int, Lost] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every asked client replied."""
        return len(self.replied) == self.asked

    def of(self, fate: Fate) -> dict[str, str]:
        """Return reasons by client, with ids as JSON wants them."""
        return {str(k): lost.reason for k, lost in sorted(self.lost.items()) if lost.fate == fate}

    def record(self) -> dict[str, Any]:
        """Return what events and results say about this exchange."""
        return {"replied": len(self.replied), "failed": self.of("failed"), "missing": self.of("missing")}


def needed(quorum: float, asked: int) -> int:
    """Return how many of the asked clients must reply: the quorum is a share, rounded up."""
    return math.ceil(quorum * asked - 1e-9)


def check_quorum(outcome: Outcome, quorum: float) -> None:
    """Refuse to go on with fewer replies than the quorum."""
    least = needed(quorum, outcome.asked)
    if len(outcome.replied) >= least:
        return
    raise TooFewClients(
        f"{outcome.op}: {len(outcome.replied)} of {outcome.asked} clients replied, and federation.quorum asks for "
        f"{least} ({_reasons(outcome.lost)}); bring clients back and resume the run, which continues from its last "
        "checkpoint"
    )


def _reasons(lost: Mapping[int, Lost], limit: int = 3) -> str:
    told = [f"client {k} {v.fate}: {v.reason}" for k, v in sorted(lost.items())]
    return "; ".join(told[:limit]) + (f"; and {len(told) - limit} more" if len(told) > limit else "")
