"""Which settings decide a result, and which tell runs apart: all that is asked of the tables of a configuration."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfeat.data.load import DATASETS

Table = dict[str, Any]
PIN = "@sha256:"
# What a run leaves behind, how clients are awaited, where the images lie; a mask cancels in FedCBDR's scores.
UNDECISIVE = ("run", "tracker", "federation", "data.path", "recipe", "fedcbdr.mask_block")
# Such a name says nothing about the images: only their place does.
OWN_DATA = {name for name, known in DATASETS.items() if known.needs == "path"}


def deciding_tables(table: Mapping[str, Any], *, place: bool = False, without: Collection[str] = ()) -> Table:
    """Return the nested tables of settings that decide a result, as checkpoints and results hold them.

    :param table: a configuration with today's names.
    :param place: keep the path of one's own images, which is all that tells them from others.
    :param without: dotted keys and tables that are left out besides.
    """
    left_out = {*UNDECISIVE, *without}
    data = table.get("data")
    if place and isinstance(data, Mapping) and data.get("name") in OWN_DATA:
        left_out.remove("data.path")
    if table.get("plugins"):
        table = {**table, "plugins": [without_folder(entry) for entry in table["plugins"]]}
    # Through JSON, so that a table read back from a checkpoint compares equal.
    canonical: Table = json.loads(json.dumps(_pruned(table, left_out), default=str))
    return canonical


def without_folder(entry: str) -> str:
    """Return a pinned plugin by which anybody knows the file: its name and checksum, not where it lies."""
    path, pin, digest = entry.partition(PIN)
    return f"{Path(path).name}{pin}{digest}" if pin else entry


def telling_keys(tables: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return the dotted keys, no more than needed, that tell apart what has the same name."""
    told: list[tuple[str, ...]] = [(name,) for name in names]
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        more = [(*known, str(table.get(key))) for known, table in zip(told, tables, strict=True)]
        if len(set(more)) > len(set(told)):
            told = more
            found.append(key)
    return found


def _pruned(table: Mapping[str, Any], left_out: Collection[str], prefix: str = "") -> Table:
    return {
        key: _pruned(value, left_out, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in table.items()
        if f"{prefix}{key}" not in left_out
    }
