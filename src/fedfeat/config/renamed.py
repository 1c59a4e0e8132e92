"""Settings that have another name today: old ones are still understood wherever a configuration is read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED = {"engine.together": "engine.vectorised", "mirror": "tracker"}  # a key, or a whole table


def with_new_names(table: Mapping[str, Any], *, where: str | None = None) -> dict[str, Any]:
    """Return nested tables with today's names; ``where`` names the source in a warning, None stays silent."""
    renamed = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for old, new in RENAMED.items():
        (*outer, name), (*_, other) = old.split("."), new.split(".")
        inside = renamed.get(outer[0]) if outer else renamed
        if isinstance(inside, dict) and name in inside:
            inside.setdefault(other, inside.pop(name))
            if where is not None:
                warnings.warn(f"{where}: {old} is called {new} now", stacklevel=2)
    return renamed


def new_key(key: str) -> str:
    """Return today's name of a dotted key."""
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
