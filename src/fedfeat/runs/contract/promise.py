"""What a promise of the contract is, and what comes of checking it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedfeat.runs.contract.trial import Trial

Check = Callable[[Trial], None]


class Broken(Exception):
    """A method that does not keep a promise: what was expected and what came, what to do, and where it is written."""

    def __init__(self, found: str, do: str = "", where: str | None = None) -> None:
        self.told = f"{where}: {found}" if where else found
        self.do, self.where = do, where
        super().__init__("; ".join(filter(None, [self.told, do])))


class NotApplicable(Exception):
    """A promise that this method need not keep, and why."""


@dataclass(frozen=True)
class Promise:
    """One promise: its name, what it says, how it is checked, and what must hold for the check to say anything."""

    name: str
    words: str
    check: Check
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a check; ``reason`` says why nothing was found out, where that is so."""

    promise: Promise
    verdict: Literal["kept", "broken", "not checked"]
    broken: Broken | None = None
    reason: str = ""


def promise(name: str, words: str, *, needs: tuple[str, ...] = ("runs",)) -> Callable[[Check], Promise]:
    """Make a function that raises ``Broken`` a promise."""
    return lambda check: Promise(name, words, check, needs)
