"""Settings that have another name today: old ones are still understood wherever a configuration is read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED = {"engine.together": "engine.vectorised", "mirror": "tracker"}  # a key, or a whole table


def with_new_names(table: Mapping[str, Any], *, where: str | None = None) -> dict[str, Any]:
    """Return nested tables with today's names; ``where`` names the source in a warning, None stays silent."""
    return _with_names(table, RENAMED, where)


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
