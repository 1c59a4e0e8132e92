"""Settings that have another name or another default today: what was written before keeps its meaning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED = {"engine.together": "engine.vectorised", "mirror": "tracker"}  # a key, or a whole table
# What runs did before there was a setting for it. A run folder, a checkpoint and a record hold every setting of their
# time, so one that is not there is older than it.
BEFORE: Mapping[str, Any] = {
    "data.resize": "crop",
    "data.trivial": 0.0,
    "data.cutout": 0.0,
    "feat.egc.prior_order": "kept",
    "model.features": "relu",
    "fedcbdr.scale_logits": False,
    "scenario.order_seed": "scenario",
    "scenario.brings": "classes",
    "scenario.blurry": 0.0,
    "scenario.leaves": {},
    "scenario.lag": {},
    "scenario.asked_at_end": "present",
    "train.mean_rounds": 10,
    "train.milestones": [50, 75],
    "train.attackers": 0.2,
    "train.paste": 0.0,
    "train.repeat_exemplars": 1,
    "train.robust": "none",
    "train.server_momentum": 0.0,
    "refed.start": "global",
    "distil.lambda": 1.0,
    "distil.features": 0.0,
    "calibrate.redraw": True,
    "calibrate.negative": False,
    "calibrate.least": 1,
    "calibrate.rule": "accuracy",
}


def with_new_names(table: Mapping[str, Any], *, where: str | None = None) -> dict[str, Any]:
    """Return nested tables with today's names; ``where`` names the source in a warning, None stays silent."""
    return _with_names(table, RENAMED, where)


def as_recorded(table: Mapping[str, Any], *, where: str | None = None) -> dict[str, Any]:
    """Return the whole configuration of a run, as it was written at any time, with today's names and its own values."""
    found = with_new_names(table, where=where)
    for key, value in BEFORE.items():
        found = _with_value(found, key.split("."), value, instead=False)
    return found


def with_first_values(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration made of defaults with those of the first version: what a run's identity starts from."""
    found = dict(table)
    for key, value in BEFORE.items():
        found = _with_value(found, key.split("."), value, instead=True)
    return found


def _with_value(table: Mapping[str, Any], path: list[str], value: Any, *, instead: bool) -> dict[str, Any]:
    """Return nested tables with one more value, if the table around it is there."""
    name, *inner = path
    found = dict(table)
    if not inner:
        return {**found, name: value} if instead or name not in found else found
    if isinstance(found.get(name), Mapping):
        found[name] = _with_value(found[name], inner, value, instead=instead)
    return found


def with_first_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with the names that settings had at first: a run keeps its identity when one is renamed."""
    return _with_names(table, {new: old for old, new in reversed(RENAMED.items())}, None)


def new_key(key: str) -> str:
    """Return today's name of a dotted key."""
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key


def _with_names(table: Mapping[str, Any], names: Mapping[str, str], where: str | None) -> dict[str, Any]:
    renamed = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for old, new in names.items():
        (*outer, name), (*_, other) = old.split("."), new.split(".")
        inside = renamed.get(outer[0]) if outer else renamed
        if isinstance(inside, dict) and name in inside:
            inside.setdefault(other, inside.pop(name))
            if where is not None:
                warnings.warn(f"{where}: {old} is called {new} now", stacklevel=3)
    return renamed
