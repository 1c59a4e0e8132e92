"""Which experiments: the grid in a sweep file, or methods and seeds of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from fedfeat.config.config import Config, Table, check_table, make_config, nested, parse_config, read_toml, with_plugins
from fedfeat.config.presets import PRESETS
from fedfeat.config.recipes import with_recipe
from fedfeat.core.errors import ConfigError, nearest
from fedfeat.core.settings import Settings, flatten, merge
from fedfeat.methods import all_methods, canonical
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


def load_sweep(
    path: Path, overrides: Sequence[str] = (), recipe: str | None = None, plugins: Sequence[Path] = ()
) -> list[Config]:
    """Read a sweep file and return its experiments, checked; mistakes show before anything runs.

    ``recipe`` is laid over the file's base and its tables; what the sweep varies stays.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a TOML file with a table [sweep]")
    table = read_toml(path)
    if not isinstance(table.get("sweep"), dict):
        raise ConfigError(f"{path}: has no table [sweep] that says what to vary, such as methods, seeds or settings")
    problems: list[str] = []
    settings = check_table(SweepSettings, table.pop("sweep"), str(path), problems, "sweep")
    if settings is None:
        raise ConfigError("; ".join(problems))
    table = with_recipe(merge(_base(settings, path), table), recipe)
    return _configs(settings, with_plugins(table, plugins), overrides, path)


def comparison_runs(config: Config, methods: str, seeds: str, out: Path) -> list[Planned]:
    """Return every (method, seed) as a checked configuration with its own folder; mistakes show before any run.

    The same seed gives every method the same tasks, clients and initial weights.
    """
    names = all_methods() if methods == "all" else [canonical(m) for m in methods.split(",") if m.strip()]
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


def _base(settings: SweepSettings, path: Path) -> Table:
    if settings.base is None:
        return {}
    if settings.base in PRESETS:
        return PRESETS[settings.base].table()
    file = path.parent / settings.base
    if not file.is_file():
        raise ConfigError(
            f"{path}: sweep.base: {settings.base!r} is no preset and no file; {nearest(settings.base, PRESETS)}"
        )
    return read_toml(file)


def _configs(settings: SweepSettings, table: Table, overrides: Sequence[str], path: Path) -> list[Config]:
    for key, name in LISTS.items():
        if key in settings.settings:
            raise ConfigError(f"{path}: sweep.settings: {key!r} does not belong here; write {name} = [...] in [sweep]")
    methods: Sequence[str] = settings.methods
    if settings.methods == ("all",):
        parse_config(table, overrides, where=str(path), folder=path.parent)  # then those of plugins are known
        methods = all_methods()
    axes: dict[Key, Sequence[Any]] = {}
    if methods:
        axes["method"] = methods
    axes |= settings.settings
    if settings.seeds:
        axes["seed"] = settings.seeds
    for key, values in axes.items():
        if not values:
            raise ConfigError(f"{path}: sweep.settings: {key!r} has no values; give at least one")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [
        make_config(_at(table, point), overrides, where=f"{path} at {_named(point)}", folder=path.parent)
        for point in points
    ]


def _at(table: Table, point: dict[Key, Any]) -> Table:
    for key, value in point.items():
        table = merge(table, nested(key, value))
    return table


def _named(point: dict[Key, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in point.items()) or "its base"
