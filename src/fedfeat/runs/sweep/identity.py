"""What makes two runs the same: the settings that decide a result, as a name that people and programs can read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedfeat.config import Config
from fedfeat.core.settings import flatten
from fedfeat.runs.folder import placed_keys, result_keys


def deciding_settings(config: Config) -> dict[str, Any]:
    """Return the settings that decide a result and differ from the defaults.

    Defaults are left out, so a setting that a later version adds does not make old runs strangers. Where a default
    itself changes, the run folder's own configuration tells, and the folder is refused.
    """
    changed = _changed(placed_keys(config), _defaults(config))
    if getattr(config.run, "keep_models", False):
        changed["keep_models"] = True
    return {**changed, "method": config.method, "seed": config.seed}


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that decide a result and are not the defaults, as nested tables."""
    return _changed(result_keys(config), _defaults(config))


def _defaults(config: Config) -> dict[str, Any]:
    return result_keys(Config(method=config.method))


def identity(config: Config) -> str:
    """Return a short fingerprint: equal for two configurations that give the same result and files."""
    text = json.dumps(deciding_settings(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def folder_name(config: Config) -> str:
    """Return a run folder's name: readable first, exact at the end."""
    scenario = config.scenario
    where = f"{config.data.name}-{scenario.tasks}-beta{scenario.beta:g}-k{scenario.clients}"
    return f"{where}-{config.method}-seed{config.seed}-{identity(config)}"


FEW = 3  # settings that are told for every run; of more, only those that are not as in most runs


def tell_apart(configs: Sequence[Config]) -> list[str]:
    """Return a name for each run: method and seed, and in which settings it differs from others of that name."""
    names = [f"{config.method} seed {config.seed}" for config in configs]
    tables = [{key: str(value) for key, value in flatten(placed_keys(config)).items()} for config in configs]
    alike: dict[str, list[dict[str, str]]] = {}
    for name, table in zip(names, tables, strict=True):
        alike.setdefault(name, []).append(table)
    usual = {name: _usual(group) for name, group in alike.items()}
    told = []
    for name, table in zip(names, tables, strict=True):
        varied = usual[name]
        shown = [k for k in varied if k in table and (len(varied) <= FEW or table[k] != varied[k])]
        told.append(", ".join([name, *(f"{key}={table[key]}" for key in shown)]))
    return told


def _usual(tables: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings in which tables differ, each with the value that most of them have."""
    keys = dict.fromkeys(key for table in tables for key in table)
    counts = {key: Counter(table.get(key, "") for table in tables) for key in keys}
    return {key: count.most_common(1)[0][0] for key, count in counts.items() if len(count) > 1}


def _changed(table: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        usual = default.get(key)
        if isinstance(value, Mapping) and isinstance(usual, Mapping):
            below = _changed(value, usual)
            if below or (usual and not value):
                found[key] = below
        elif key not in default or value != usual:
            found[key] = value
    return found
