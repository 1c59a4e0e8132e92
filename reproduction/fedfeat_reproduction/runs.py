"""From entries of a table to experiments: each training once, whatever number of entries it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fedfeat.config import Config, make_config
from fedfeat.config.presets import SEEDS, Cell, Table, experiment
from fedfeat.core.errors import ConfigError
from fedfeat.data.settings import home
from fedfeat_reproduction.cells import quick_experiment
from fedfeat_reproduction.published import Entry
from fedfeat_reproduction.sources import CALIBRATE, can_calibrate, trained_as


@dataclass(frozen=True)
class Plan:
    """How the experiments of a table are to be run."""

    seeds: Sequence[int] = SEEDS
    quick: bool = False
    calibrate: bool = False
    overrides: Sequence[str] = field(default=())

    def configs(self, entries: Sequence[Entry]) -> tuple[list[Config], list[str]]:
        """Return the experiments that entries need, each once, and why some of them cannot be run here.

        They come seed by seed, so that first figures come early. Where none of them can be run, that is an error.
        """
        pairs = dict.fromkeys((entry.cell, self.method(entry.method)) for entry in entries)
        found: list[Config] = []
        refused: dict[str, dict[str, None]] = {}  # why, and which methods
        for seed in self.seeds:
            for cell, method in pairs:
                try:
                    found.append(self.config(cell, method, seed))
                except ConfigError as error:
                    refused.setdefault(str(error), {})[method] = None
        if refused and not found:
            raise ConfigError("; ".join(refused))
        return found, [f"{', '.join(methods)}: {why}" for why, methods in refused.items()]

    def method(self, method: str) -> str:
        """Return the method to train for a figure; with calibration where that is asked for and possible."""
        trained = trained_as(method)
        return trained + CALIBRATE if self.calibrate and can_calibrate(trained) else trained

    def config(self, cell: Cell, method: str, seed: int) -> Config:
        """Return one experiment."""
        make = small_experiment if self.quick else experiment
        return make_config(make(cell, method, seed), self.overrides, where="--set")


def small_experiment(cell: Cell, method: str, seed: int = SEEDS[0]) -> Table:
    """Return the quick experiment; CLIP2FL gets a teacher without knowledge, for CLIP is not built in."""
    table = quick_experiment(cell, method, seed)
    return {**table, **_stand_in()} if "clip2fl" in method.split("+") else table


@cache
def _stand_in() -> dict[str, Any]:
    from fedfeat.data import DataSettings, load_dataset
    from fedfeat.methods.clip2fl.stand_in import teacher_settings

    settings = teacher_settings(home() / "stand-in", load_dataset(DataSettings(name="digits")))
    return {"clip2fl": settings.model_dump(by_alias=True, exclude_none=True)}


def engine_overrides(engine: str | None, data: Path | None) -> list[str]:
    """Return the settings behind ``--engine`` and ``--data``."""
    overrides = [] if data is None else [f'data.path="{data.expanduser()}"']
    if engine is not None:
        overrides.append(f"engine.name={engine}")
    if engine == "cuda":
        overrides += ["engine.device=cuda", "engine.precision=bf16"]
    return overrides


def many_seeds(count: int) -> tuple[int, ...]:
    """Return the first so many seeds: 2023, 2024, ..."""
    return tuple(range(SEEDS[0], SEEDS[0] + count))
