"""One small file of effects measured in small on the built-in digits, from which the page shows a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat_reproduction.choices import METHOD
from fedfeat_reproduction.choices_effects import Effect, effect_of, find_pairs, shelves
from fedfeat_reproduction.choices_runs import Protocol, choose_alternatives
from fedfeat_reproduction.ours import setting_table
from fedfeat_reproduction.records import Record

QUICK_FILE = Path("quick", "choices.json")  # below the folder of records, whose own files are records of runs


class MeasuredChoices(BaseModel):
    """Effects with the setting and the machines they were measured in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


def measured(protocol: Protocol, records: Sequence[Record]) -> MeasuredChoices:
    """Return every effect of which there is a pair of runs, whatever was asked for last."""
    among, usual = shelves(records), protocol.usual(METHOD)
    found = [(a, find_pairs(a, protocol, among)) for a in choose_alternatives() if protocol.objection(a) is None]
    return MeasuredChoices(
        dataset=usual.data.name,
        where=protocol.where,
        setting=setting_table(usual),
        rounds=usual.train.rounds,
        environments=_environments(run for _, pairs in found for pair in pairs.values() for run in pair),
        effects=[effect_of(a, protocol, pairs) for a, pairs in found if pairs],
    )


def write_measured(kept: MeasuredChoices, path: Path) -> None:
    """Write the file."""
    write_atomically(path, kept.to_json().encode())


def read_measured(path: Path) -> MeasuredChoices | None:
    """Read the file; None where there is none."""
    if not path.is_file():
        return None
    try:
        return MeasuredChoices.model_validate_json(path.read_text())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "file"
        raise FedfeatError(
            f"{path}: not a record of choices ({where}: {first['msg']}); write it again with "
            f"'fedfeat paper run choices --quick --seeds 3 --record {path}'"
        ) from None


def _environments(runs: Iterable[Record]) -> list[dict[str, Any]]:
    found = {json.dumps({**run.environment, "commit": run.commit}, sort_keys=True): None for run in runs}
    return [json.loads(text) for text in sorted(found)]
