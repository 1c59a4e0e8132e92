"""What makes two runs the same: the settings that decide a result, and a name that people and programs can read.

Run folders, checkpoints, sweeps and the reproduction all ask here; reports ask ``config.deciding``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfeat.config.config import Config, differing_keys
from fedfeat.config.deciding import OWN_DATA, UNDECISIVE, deciding_tables, telling_keys, without_folder
from fedfeat.config.presets import Cell, short_name
from fedfeat.config.renamed import as_recorded, new_key, with_first_names, with_first_values
from fedfeat.core.errors import CheckpointError
from fedfeat.core.files import json_digest
from fedfeat.core.settings import flatten
from fedfeat.runs.folder import RunFolder

Table = dict[str, Any]
COMPUTATION = ("engine", "plugins")  # other last bits of a result, but the same experiment in a table of results
MOST_IN_A_NAME = 24
LONGEST_NAME = 200  # file systems take 255 bytes, and files of a run are written beside it under longer names
FEW = 3  # settings that are told for every run; of more, only those that are not as in most runs


def deciding_settings(
    config: Config | Mapping[str, Any], *, place: bool = False, without: Collection[str] = ()
) -> Table:
    """Return ``deciding_tables`` of a configuration, or of its tables as they were read from a file of any version."""
    if not isinstance(config, Config):
        return deciding_tables(as_recorded(config), place=place, without=without)
    table = config.to_table()
    if place and config.data.name in OWN_DATA:
        table["data"]["path"] = str(config.data.location())
    return deciding_tables(table, place=place, without=without)


def changed_settings(config: Config, *, place: bool = False, without: Collection[str] = ()) -> Table:
    """Return the settings that decide a result and differ from the defaults.

    Defaults are left out, so an old run is found again where a later version adds a setting. Where that version does
    something else by default, its value is told, and that of before is not.
    """
    usual = with_first_values(deciding_settings(Config(method=config.method), without=without))
    return _changed(deciding_settings(config, place=place, without=without), usual)


def decides(key: str, without: Collection[str] = ()) -> bool:
    """Say whether a result depends on a dotted key; ``without`` names others that do not count."""
    names = new_key(key).split(".")
    tables = {".".join(names[: depth + 1]) for depth in range(len(names))}
    return tables.isdisjoint({*UNDECISIVE, *without})


def identity(config: Config) -> str:
    """Return a short fingerprint: equal for two configurations that give the same result and files."""
    changed = with_first_names(changed_settings(config, place=True))
    if config.plugins:
        changed["plugins"] = list(config.plugins)  # with their paths, as folders of sweeps were always named
    if config.run.keep_models:
        changed["keep_models"] = True
    return json_digest({**changed, "method": config.method, "seed": config.seed})[:10]


def folder_name(config: Config, told: Iterable[str] = ()) -> str:
    """Return a run folder's name: readable first, exact at the end.

    :param told: dotted keys whose values stand in it besides.
    """
    scenario = config.scenario
    where = Cell(config.data.name, scenario.tasks, scenario.beta, scenario.clients)
    values = flatten(deciding_settings(config, place=True))
    begin, end = f"{where.name}-{config.method}", f"-seed{config.seed}-{identity(config)}"
    for key in told:
        more = f"-{key.rpartition('.')[2]}{_in_a_name(values[key])}" if key in values else ""
        if len(begin) + len(more) + len(end) <= LONGEST_NAME:
            begin += more
    return begin + end


def folder_names(configs: Sequence[Config]) -> list[str]:
    """Return a folder's name for each of some runs, with the values of the settings in which they differ."""
    plain = [folder_name(config).rpartition("-")[0] for config in configs]
    told = telling_keys([flatten(deciding_settings(config, place=True)) for config in configs], plain)
    return [folder_name(config, told) for config in configs]


def refuse_other_folder(folder: RunFolder, config: Config) -> None:
    """Refuse to go on in a run folder that was begun with other plugins or settings, or on other data."""
    if folder.plugins() != [without_folder(entry) for entry in config.plugins]:
        raise _mismatch(folder.path, ["plugins"])  # now: two versions of a file cannot both be loaded
    refuse_other_run(folder.path, config, folder.config())


def refuse_other_run(path: Path, config: Config, begun: Config | Mapping[str, Any]) -> None:
    """Refuse to go on in the folder of a run that was begun with other settings, or on other data.

    :param begun: the run folder's configuration, or the deciding settings in a checkpoint, which tell no place.
    """
    place = isinstance(begun, Config)
    keys = differing_keys(deciding_settings(begun, place=place), deciding_settings(config, place=place))
    keys = [key for key in keys if key != "model.path"]  # the fingerprint of the folder tells
    if keys:
        raise _mismatch(path, keys)


def _mismatch(path: Path, keys: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{path}: the configuration does not match the run begun here in {', '.join(keys)}; "
        "restore those values, or start a new run in another folder"
    )


def tell_apart(configs: Sequence[Config]) -> list[str]:
    """Return a name for each run: method and seed, and in which settings it differs from others of that name."""
    names = [f"{short_name(config.method)} seed {config.seed}" for config in configs]
    tables = [{k: str(v) for k, v in flatten(deciding_settings(c, place=True)).items()} for c in configs]
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


def _in_a_name(value: Any) -> str:
    """Return a value as part of a file name: short, and without what a file system or shell would take amiss."""
    text = Path(value).stem if isinstance(value, str) else str(value)
    return re.sub(r"[^\w.+]+", "_", text)[:MOST_IN_A_NAME].strip("_")


def _usual(tables: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings in which tables differ, each with the value that most of them have."""
    keys = dict.fromkeys(key for table in tables for key in table)
    counts = {key: Counter(table.get(key, "") for table in tables) for key in keys}
    return {key: count.most_common(1)[0][0] for key, count in counts.items() if len(count) > 1}


def _changed(table: Mapping[str, Any], default: Mapping[str, Any]) -> Table:
    found: Table = {}
    for key, value in table.items():
        usual = default.get(key)
        if isinstance(value, Mapping) and isinstance(usual, Mapping):
            below = _changed(value, usual)
            if below or (usual and not value):
                found[key] = below
        elif key not in default or value != usual:
            found[key] = value
    return found
