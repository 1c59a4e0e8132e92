"""Everything the page shows, as one JSON object; the page's script draws it and computes nothing new."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

from fedfeat import __version__
from fedfeat.config.deciding import telling_keys
from fedfeat.report.collect import Group, group_runs, problems, setting
from fedfeat.report.group_data import Data, group_data, run_detail
from fedfeat.report.headline import comparable, headline, named
from fedfeat.report.predictions import choices
from fedfeat.report.records import ScenarioRecord
from fedfeat.report.run import Run
from fedfeat.report.tables import COLUMNS

MOST_DETAIL_BYTES = 3_500_000
GAIN = {
    "key": "gain",
    "heading": "correction",
    "unit": "points",
    "digits": 2,
    "meaning": "final accuracy with the chosen prediction minus the same without correction",
    "better": "more",
}


def page_data(runs: Sequence[Run]) -> Data:
    """Return the content of a report of some runs."""
    groups = group_runs(runs)
    details, scenarios, left_out = _details(groups)
    missing = [f"{path}: {sentence}." for path, sentence in problems(runs)]
    if left_out:
        missing.append(f"{left_out} runs are not shown in detail, to keep this page small; report them on their own.")
    return {
        "title": title(groups),
        "headline": headline(groups),
        "ranked": comparable(groups),
        "varied": varied(groups),
        "version": __version__,
        "runs": len(runs),
        "choices": choices(runs),
        "columns": columns(),
        "groups": [group_data(group) for group in groups],
        "details": details,
        "scenarios": scenarios,
        "setting": _setting(groups),
        "missing": missing,
    }


def title(groups: Sequence[Group]) -> str:
    """Return what was run on what."""
    return f"{', '.join(sorted({group.dataset for group in groups}))}: {named(groups, ', '.join)}"


def varied(groups: Sequence[Group]) -> Data:
    """Return the settings that a sweep varied, each with its value in every group, or None.

    Where runs of one method also differ in others, no setting alone explains an accuracy, and there is none.
    """
    settings = [setting(group.runs[0]) for group in groups]
    methods = [group.method for group in groups]
    keys = telling_keys(settings, methods)
    rest = [{key: value for key, value in values.items() if key not in keys} for values in settings]
    if telling_keys(rest, methods):
        return {}
    return {key: [_plain(values.get(key)) for values in settings] for key in keys}


def _plain(value: Any) -> float | str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return value if value is None or number else _value(value)


def columns() -> list[Data]:
    """Return the columns of the comparison; the switch takes the place of the column without correction."""
    told = ("heading", "unit", "digits", "meaning", "better")
    found = [
        {"key": column.field, **{name: getattr(column, name) for name in told}}
        for column in COLUMNS
        if column.field != "final_accuracy_uncorrected"
    ]
    return [found[0], GAIN, *found[1:]]


def _details(groups: Sequence[Group]) -> tuple[list[Data], list[Data], int]:
    """Return runs in detail, the first seed of each method first, as many as fit; scenarios are stored once."""
    members = [(place, number, run) for number, g in enumerate(groups) for place, run in enumerate(g.runs)]
    details, scenarios, left = list[Data](), list[Data](), MOST_DETAIL_BYTES
    known: dict[str, int] = {}
    for _, number, run in sorted(members, key=lambda m: m[:2]):
        detail = {"group": number, "scenario": None, **run_detail(run)}
        if run.scenario is not None:
            drawn = scenario_data(run.scenario)
            name = json.dumps(drawn)
            if name not in known:
                known[name] = len(scenarios)
                scenarios.append(drawn)
            detail["scenario"] = known[name]
        left -= len(json.dumps(detail))
        if left < 0 and details:
            return _ordered(details), scenarios, len(members) - len(details)
        details.append(detail)
    return _ordered(details), scenarios, 0


def _ordered(details: list[Data]) -> list[Data]:
    return sorted(details, key=lambda d: d["group"])


def scenario_data(scenario: ScenarioRecord) -> Data:
    """Return who holds what, for the map of tasks, clients and classes."""
    return {
        "seed": scenario.seed,
        "clients": scenario.num_clients,
        "tasks": [
            task.model_dump(exclude={"clients"})
            | {"held": [[c.client, *c.counts] for c in task.clients], "joined": len(task.clients)}
            for task in scenario.tasks
        ],
    }


def _setting(groups: Sequence[Group]) -> Data:
    """Return the settings shared by all, those that are not, notes and versions."""
    flat = [setting(g.runs[0]) for g in groups]
    keys = [key for key in dict.fromkeys(key for f in flat for key in f) if key != "method"]
    shared = {k: flat[0][k] for k in keys if all(k in f and f[k] == flat[0][k] for f in flat)}
    apart = {k: [_value(f[k]) if k in f else None for f in flat] for k in keys if k not in shared}
    runs = [run for g in groups for run in g.runs]
    said = {f"{g.label}: {note}" for g in groups for run in g.runs if run.result for note in run.result.notes}
    versions = list(dict.fromkeys(key for run in runs for key in run.environment))
    return {
        "shared": {k: _value(v) for k, v in shared.items()},
        "apart": apart,
        "notes": sorted(said),
        "versions": {k: _distinct([r.environment[k] for r in runs if k in r.environment]) for k in versions},
    }


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _distinct(values: Sequence[Any]) -> str:
    return ", ".join(dict.fromkeys("none" if v is None else str(v) for v in values))
