"""What a run leaves behind: configuration, environment, scenario, events, checkpoints, result."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedfeat
from fedfeat.config import Config, differing_keys, load_config
from fedfeat.config.renamed import with_new_names
from fedfeat.core.errors import CheckpointError, ConfigError, FedfeatError
from fedfeat.core.files import disk_errors, write_atomically, write_json
from fedfeat.methods import settings_tables
from fedfeat.runs.checkout import checkout_commit
from fedfeat.runs.checkpoint import CheckpointFolder

UNDECISIVE_TABLES = ("run", "tracker", "federation")  # what a run leaves behind, and how clients are awaited
OWN_DATA = ("npz", "parquet", "folder")  # such a name says nothing about the images: only their place does


class RunFolder:
    """One run's folder; its files are the truth about the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events_path = path / "events.jsonl"
        self.result_path = path / "result.json"
        self.config_path = path / "config.toml"
        self.checkpoints = CheckpointFolder(path / "checkpoint")

    @classmethod
    def create(cls, path: Path, config: Config, scenario: Mapping[str, Any]) -> RunFolder:
        """Start a folder; one that already holds a run is refused."""
        folder = cls(path)
        if folder.config_path.exists():
            raise FedfeatError(
                f"{path}: already holds a run; continue it with 'fedfeat resume {path}' or choose another --out"
            )
        write_json(path / "env.json", environment())
        folder.write_scenario(scenario)
        write_atomically(folder.config_path, config.to_toml().encode())
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing folder."""
        folder = cls(path)
        if not folder.config_path.is_file():
            raise CheckpointError(f"{path}: not a run folder (it has no config.toml); start one with 'fedfeat run'")
        return folder

    def write_scenario(self, scenario: Mapping[str, Any]) -> None:
        """Write who sees what."""
        write_json(self.path / "scenario.json", scenario)

    def config(self) -> Config:
        """Return what the run was started with; a folder that this version cannot read is refused, with a way out."""
        try:
            return load_config(self.config_path)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; the run may be of another version of fedfeat: "
                f"move {self.path} away, or go on with the version in its env.json"
            ) from error

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Add one line; what was written survives a kill."""
        with disk_errors(self.events_path), self.events_path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def events_size(self) -> int:
        """Return how long the events file is, which a checkpoint remembers."""
        return self.events_path.stat().st_size if self.events_path.exists() else 0

    def cut_events(self, size: int) -> None:
        """Drop lines after a checkpoint: the resumed run writes them again."""
        if self.events_size() > size:
            os.truncate(self.events_path, size)

    def events(self) -> list[dict[str, Any]]:
        """Return all whole lines."""
        if not self.events_path.exists():
            return []
        found = []
        for line in self.events_path.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break  # a torn last line
        return found

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished run, None otherwise."""
        if not self.result_path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self.result_path.read_text())
        except ValueError:
            return None  # damaged: the last checkpoint gives it again
        return found


def result_keys(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that decides the result: not where files are, nor how clients are awaited."""
    table = config.to_table()
    for name in UNDECISIVE_TABLES:
        table.pop(name, None)
    table["data"] = {k: v for k, v in table["data"].items() if k != "path"}
    for name, settings in settings_tables().items():
        for key in settings.undecisive & table.get(name, {}).keys():
            del table[name][key]
    # Through JSON, so that a table read back from a checkpoint compares equal.
    canonical: dict[str, Any] = json.loads(json.dumps(table))
    return canonical


def placed_keys(config: Config) -> dict[str, Any]:
    """Return ``result_keys`` and the place of one's own data; for comparisons, not for files that others read."""
    table = result_keys(config)
    if config.data.name in OWN_DATA:
        table["data"]["path"] = str(config.data.location())
    return table


def refuse_other_config(path: Path, config: Config, saved: Mapping[str, Any]) -> None:
    """Refuse to continue with a configuration that would give another result than ``result_keys`` that were saved."""
    _refuse(path, differing_keys(with_new_names(saved), result_keys(config)))


def refuse_other_run(path: Path, config: Config, begun: Config) -> None:
    """Refuse the folder of a run that was begun with a configuration that gives another result, or on other data."""
    _refuse(path, differing_keys(placed_keys(begun), placed_keys(config)))


def _refuse(path: Path, keys: Sequence[str]) -> None:
    if keys:
        raise CheckpointError(
            f"{path}: the configuration does not match the run begun here in {', '.join(keys)}; "
            "restore those values, or start a new run in another folder"
        )


def environment() -> dict[str, Any]:
    """Return versions and hardware."""
    return {
        "fedfeat": fedfeat.__version__,
        "commit": checkout_commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }
