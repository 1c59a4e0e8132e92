"""Which experiments: the grid in a sweep file, or methods and seeds of a comparison."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from fedfeat.config import Config, make_config
from fedfeat.config.config import Table
from fedfeat.config.presets import PRESETS
from fedfeat.core.errors import ConfigError, nearest
from fedfeat.core.settings import Settings, flatten
from fedfeat.methods import all_methods
from fedfeat.runs.sweep.planned import Planned

Key = str
LISTS = {"method": "methods", "seed": "seeds"}  # keys of an experiment that have a list of their own


class SweepSettings(Settings):
    """The table ``[sweep]``: every combination of methods, seeds and settings is one run."""

    methods: tuple[str, ...] = Field(
        (), description="methods to run; empty: the base configuration's; 'all': every one"
    )
    seeds: tuple[int, ...] = Field((), description="seeds to run; empty: the base configuration's")
    settings: dict[Key, list[Any]] = Field(
        default_factory=dict, description="dotted keys and the values to try, such as 'train.lr' = [0.01, 0.04]"
    )
    base: str | None = Field(None, description="a preset, or a TOML file beside this one, that the file adds to")

    @field_validator("settings", mode="before")
    @classmethod
    def _dotted(cls, table: Any) -> Any:
        """Take ``train.lr = [...]`` like ``"train.lr" = [...]``."""
        return flatten(table) if isinstance(table, dict) else table


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> list[Config]:
    """Read a sweep file and return its experiments, checked; mistakes show before anything runs."""
    try:
        table: Table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a TOML file with a table [sweep]") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a valid TOML file ({error})") from error
    if not isinstance(table.get("sweep"), dict):
        raise ConfigError(f"{path}: has no table [sweep] that says what to vary, such as methods, seeds or settings")
    settings = _settings(table.pop("sweep"), path)
    return _configs(settings, [*_base(settings, path), table], overrides, path)


def comparison_runs(config: Config, methods: str, seeds: str, out: Path) -> list[Planned]:
    """Return every (method, seed) as a checked configuration with its own folder; mistakes show before any run.

    The same seed gives every method the same tasks, clients and initial weights.
    """
    names = all_methods() if methods == "all" else [m.strip() for m in methods.split(",") if m.strip()]
    try:
        numbers = [int(s) for s in seeds.split(",") if s.strip()]
    except ValueError:
        raise ConfigError(f"--seeds: expected whole numbers such as 0,1,2, got {seeds!r}") from None
    if not names or not numbers:
        raise ConfigError("--methods and --seeds must each name at least one")
    table = config.to_table() | {
        name: part.model_dump(by_alias=True, exclude_none=True) for name, part in config.parts.items()
    }
    return [
        Planned(make_config({**table, "method": name, "seed": seed}), out / name / f"seed{seed}")
        for name in names
        for seed in numbers
    ]


def _settings(table: Table, path: Path) -> SweepSettings:
    try:
        return SweepSettings.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{path}: unknown key 'sweep.{name}'; {nearest(name, SweepSettings.model_fields)}"
            ) from None
        raise ConfigError(f"{path}: sweep.{name}: {first['msg'].lower()}, got {first['input']!r}") from None


def _base(settings: SweepSettings, path: Path) -> list[Table]:
    if settings.base is None:
        return []
    if settings.base in PRESETS:
        return [PRESETS[settings.base].table()]
    file = path.parent / settings.base
    if not file.is_file():
        raise ConfigError(
            f"{path}: sweep.base: {settings.base!r} is no preset and no file; {nearest(settings.base, PRESETS)}"
        )
    try:
        return [tomllib.loads(file.read_text())]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a valid TOML file ({error})") from error


def _configs(settings: SweepSettings, tables: Sequence[Table], overrides: Sequence[str], path: Path) -> list[Config]:
    for key, name in LISTS.items():
        if key in settings.settings:
            raise ConfigError(f"{path}: sweep.settings: {key!r} does not belong here; write {name} = [...] in [sweep]")
    methods = all_methods() if settings.methods == ("all",) else settings.methods
    axes: dict[Key, Sequence[Any]] = {}
    if methods:
        axes["method"] = methods
    axes |= settings.settings
    if settings.seeds:
        axes["seed"] = settings.seeds
    for key, values in axes.items():
        if not values:
            raise ConfigError(f"{path}: sweep.settings: {key!r} has no values; give at least one")
    merged: Table = {}
    for table in tables:
        merged = _merged(merged, table)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [
        make_config(_with(merged, point), overrides, where=f"{path} at {_words(point)}", folder=path.parent)
        for point in points
    ]


def _with(table: Table, point: dict[Key, Any]) -> Table:
    for key, value in point.items():
        nested: Any = value
        for name in reversed(key.split(".")):
            nested = {name: nested}
        table = _merged(table, nested)
    return table


def _merged(a: Table, b: Table) -> Table:
    merged = dict(a)
    for key, value in b.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _words(point: dict[Key, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in point.items()) or "its base"
