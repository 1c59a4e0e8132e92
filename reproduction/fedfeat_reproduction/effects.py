"""What another answer to an open choice is worth: differences of paired runs over seeds, and a small file of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedfeat.core.errors import FedfeatError
from fedfeat_reproduction.choices import METHOD, Alternative, ChoiceRuns, choose_alternatives
from fedfeat_reproduction.records import Accuracy, Record, first_problem
from fedfeat_reproduction.results import RecordIndex, SeedMean, setting_of, setting_table
from fedfeat_reproduction.sources import CALIBRATE, after_tasks

Measure = Literal["plain", "own", "calibrated"]
MEASURES: tuple[Measure, ...] = ("plain", "own", "calibrated")
QUICK_FILE = Path("quick", "choices.json")  # below the folder of records, whose own files are records of runs
Pairs = dict[int, tuple[Record, Record]]  # seed -> usual and varied run


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Accuracies(_Frozen):
    """Final accuracies of one run: uncorrected, as the method predicts, and calibrated where it is."""

    plain: Accuracy
    own: Accuracy
    calibrated: Accuracy | None = None


class Pair(_Frozen):
    """Two runs of one seed that differ in one choice."""

    seed: int
    usual: Accuracies
    varied: Accuracies


class Effect(_Frozen):
    """One other answer and the pairs of runs that tell what it changes."""

    choice: str
    changes: dict[str, Any]
    method: str
    pairs: list[Pair]

    def usual(self, measure: Measure) -> SeedMean | None:
        """Return the accuracies of the usual runs."""
        return _mean(getattr(pair.usual, measure) for pair in self.pairs)

    def change(self, measure: Measure) -> SeedMean | None:
        """Return the differences, varied less usual, in points."""
        values = [(getattr(pair.varied, measure), getattr(pair.usual, measure)) for pair in self.pairs]
        return _mean(None if None in pair else pair[0] - pair[1] for pair in values)


def within_spread(change: SeedMean) -> bool:
    """Whether a mean difference is no larger than its standard deviation over seeds; one seed cannot tell."""
    return change.std is not None and abs(change.mean) <= change.std


def indices(records: Iterable[Record]) -> list[RecordIndex]:
    """Return an index per kind of images and engine: runs of different ones are never compared."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for kept in records:
        engine = kept.config.get("engine", {})
        groups.setdefault((kept.images, *(engine.get(k) for k in ("name", "device", "precision"))), []).append(kept)
    return [RecordIndex(group) for group in groups.values()]


def find_pairs(alternative: Alternative, runs: ChoiceRuns, among: Sequence[RecordIndex]) -> Pairs:
    """Return usual and varied run of every seed that has both."""
    usual, varied = runs.usual(alternative.choice.method), runs.varied(alternative)
    found: Pairs = {}
    for index in among:
        ours = index.by_setting.get((setting_of(usual), usual.method), {})
        theirs = index.by_setting.get((setting_of(varied), varied.method), {})
        for seed in ours.keys() & theirs.keys():
            found.setdefault(seed, (ours[seed], theirs[seed]))
    return dict(sorted(found.items()))


def effect_of(alternative: Alternative, runs: ChoiceRuns, pairs: Mapping[int, tuple[Record, Record]]) -> Effect:
    """Return the effect that pairs of runs show."""
    return Effect(
        choice=alternative.choice.name,
        changes=dict(alternative.changes),
        method=runs.usual(alternative.choice.method).method,
        pairs=[Pair(seed=s, usual=accuracies(u), varied=accuracies(v)) for s, (u, v) in pairs.items()],
    )


def accuracies(kept: Record) -> Accuracies:
    """Return the final accuracies of a run."""
    corrected, plain = (after_tasks(kept, p)[-1] for p in ("corrected", "plain"))
    if not kept.method.endswith(CALIBRATE):
        return Accuracies(plain=plain, own=corrected)
    return Accuracies(plain=plain, own=after_tasks(kept, "before calibration")[-1], calibrated=corrected)


def _mean(values: Iterable[float | None]) -> SeedMean | None:
    there = tuple(value for value in values if value is not None)
    return SeedMean(there) if there else None


class MeasuredChoices(_Frozen):
    """Effects with the setting and the machines they were measured in."""

    dataset: str
    where: str  # data set, scenario, rounds
    setting: dict[str, Any]  # of the usual run, without defaults
    rounds: int
    environments: list[dict[str, Any]]  # versions, hardware and commit
    effects: list[Effect]

    def to_json(self) -> str:
        """Return the file as text: an effect per line, so that a change is easy to see."""
        values = self.model_dump()
        effects = ",\n".join(f"    {json.dumps(effect)}" for effect in values.pop("effects"))
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        return "{\n" + ",\n".join([*lines, f'  "effects": [\n{effects}\n  ]']) + "\n}\n"


def measured(runs: ChoiceRuns, records: Sequence[Record]) -> MeasuredChoices:
    """Return every effect of which there is a pair of runs, whatever was asked for last."""
    among, usual = indices(records), runs.usual(METHOD)
    found = [(a, find_pairs(a, runs, among)) for a in choose_alternatives() if runs.objection(a) is None]
    return MeasuredChoices(
        dataset=usual.data.name,
        where=runs.where,
        setting=setting_table(usual),
        rounds=usual.train.rounds,
        environments=_environments(kept for _, pairs in found for pair in pairs.values() for kept in pair),
        effects=[effect_of(a, runs, pairs) for a, pairs in found if pairs],
    )


def read_measured(path: Path) -> MeasuredChoices | None:
    """Read the file; None where there is none."""
    if not path.is_file():
        return None
    try:
        return MeasuredChoices.model_validate_json(path.read_text())
    except ValidationError as error:
        raise FedfeatError(
            f"{path}: not a record of choices ({first_problem(error)}); write it again with "
            f"'fedfeat paper run choices --quick --seeds 3 --record {path}'"
        ) from None


def _environments(records: Iterable[Record]) -> list[dict[str, Any]]:
    found = {json.dumps({**kept.environment, "commit": kept.commit}, sort_keys=True): None for kept in records}
    return [json.loads(text) for text in sorted(found)]
