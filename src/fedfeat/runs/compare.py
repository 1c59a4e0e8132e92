"""Several methods on the same splits: the same seed gives every method the same tasks, clients and initial weights."""

from __future__ import annotations

from pathlib import Path

from fedfeat.config import Config, make_config
from fedfeat.core.errors import ConfigError
from fedfeat.methods import all_methods
from fedfeat.runs.sweep import Planned


def comparison_runs(config: Config, methods: str, seeds: str, out: Path) -> list[Planned]:
    """Return every (method, seed) as a checked configuration with its own folder; mistakes show before any run."""
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
