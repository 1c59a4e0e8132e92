"""What another answer to an open choice is worth: differences of paired runs, averaged over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fedfeat_reproduction.choices_runs import Alternative, Protocol
from fedfeat_reproduction.ours import Figure, Shelf, setting_of
from fedfeat_reproduction.records import Accuracy, Record
from fedfeat_reproduction.sources import CALIBRATE, after_tasks

Measure = Literal["plain", "own", "calibrated"]
MEASURES: tuple[Measure, ...] = ("plain", "own", "calibrated")
Pairs = dict[int, tuple[Record, Record]]  # seed -> usual and varied run


class Accuracies(BaseModel):
    """Final accuracies of one run: uncorrected, as the method predicts, and calibrated where it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plain: Accuracy
    own: Accuracy
    calibrated: Accuracy | None = None


class Pair(BaseModel):
    """Two runs of one seed that differ in one choice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int
    usual: Accuracies
    varied: Accuracies


class Effect(BaseModel):
    """One other answer and the pairs of runs that tell what it changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    choice: str
    changes: dict[str, Any]
    method: str
    pairs: list[Pair]

    def usual(self, measure: Measure) -> Figure | None:
        """Return the accuracies of the usual runs."""
        return _figure(getattr(pair.usual, measure) for pair in self.pairs)

    def change(self, measure: Measure) -> Figure | None:
        """Return the differences, varied less usual, in points."""
        values = [(getattr(pair.varied, measure), getattr(pair.usual, measure)) for pair in self.pairs]
        return _figure(None if None in pair else pair[0] - pair[1] for pair in values)


def within_spread(change: Figure) -> bool:
    """Whether a mean difference is no larger than its standard deviation over seeds; one seed cannot tell."""
    return change.std is not None and abs(change.mean) <= change.std


def shelves(records: Iterable[Record]) -> list[Shelf]:
    """Return a shelf per kind of images and engine: runs of different ones are never compared."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for kept in records:
        engine = kept.config.get("engine", {})
        groups.setdefault((kept.images, *(engine.get(k) for k in ("name", "device", "precision"))), []).append(kept)
    return [Shelf(group) for group in groups.values()]


def find_pairs(alternative: Alternative, protocol: Protocol, among: Sequence[Shelf]) -> Pairs:
    """Return usual and varied run of every seed that has both."""
    usual, varied = protocol.usual(alternative.choice.method), protocol.varied(alternative)
    found: Pairs = {}
    for shelf in among:
        ours = shelf.found.get((setting_of(usual), usual.method), {})
        theirs = shelf.found.get((setting_of(varied), varied.method), {})
        for seed in ours.keys() & theirs.keys():
            found.setdefault(seed, (ours[seed], theirs[seed]))
    return dict(sorted(found.items()))


def effect_of(alternative: Alternative, protocol: Protocol, pairs: Mapping[int, tuple[Record, Record]]) -> Effect:
    """Return the effect that pairs of runs show."""
    return Effect(
        choice=alternative.choice.name,
        changes=dict(alternative.changes),
        method=protocol.usual(alternative.choice.method).method,
        pairs=[Pair(seed=s, usual=accuracies(u), varied=accuracies(v)) for s, (u, v) in pairs.items()],
    )


def accuracies(kept: Record) -> Accuracies:
    """Return the final accuracies of a run."""
    corrected, plain = (after_tasks(kept, p)[-1] for p in ("corrected", "plain"))
    if not kept.method.endswith(CALIBRATE):
        return Accuracies(plain=plain, own=corrected)
    return Accuracies(plain=plain, own=after_tasks(kept, "before calibration")[-1], calibrated=corrected)


def _figure(values: Iterable[float | None]) -> Figure | None:
    there = tuple(value for value in values if value is not None)
    return Figure(there) if there else None
