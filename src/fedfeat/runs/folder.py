"""What a run leaves behind: configuration, environment, scenario, events, checkpoints, result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedfeat
from fedfeat.config.config import Config, make_config, read_toml
from fedfeat.config.deciding import PIN, without_folder
from fedfeat.config.plugins import loaded_file
from fedfeat.config.renamed import as_recorded
from fedfeat.core.errors import CheckpointError, ConfigError, FedfeatError, PluginError
from fedfeat.core.files import disk_errors, json_ready, refuse_unwritable, sha256, write_atomically, write_json
from fedfeat.runs.checkpoint import CheckpointFolder

UNKNOWN = "not recorded"
PLUGINS = "plugins"  # folder of their copies


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
        folder.refuse_another()
        write_json(path / "env.json", environment())
        folder.write_scenario(scenario)
        folder.write_config(config)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing folder."""
        folder = cls(path)
        if not folder.config_path.is_file():
            raise CheckpointError(f"{path}: not a run folder (it has no config.toml); start one with 'fedfeat run'")
        return folder

    def refuse_another(self) -> None:
        """Refuse a folder that holds a run already, or that cannot be made; nothing is written."""
        if self.config_path.exists():
            raise FedfeatError(
                f"{self.path}: already holds a run; continue it with 'fedfeat resume {self.path}' or choose another "
                "--out"
            )
        refuse_unwritable(self.path)

    def write_config(self, config: Config) -> None:
        """Write what the run is started with, and a copy of every plugin, by which the configuration names it."""
        kept: dict[Path, str] = {}
        for name, digest, source in map(loaded_file, config.plugins):
            place = Path(PLUGINS, name)
            if kept.get(place, digest) != digest:  # another file of the same name
                place = Path(PLUGINS, digest, name)
            kept[place] = digest
            write_atomically(self.path / place, source)
        entries = tuple(f"{place.as_posix()}{PIN}{digest}" for place, digest in kept.items())
        write_atomically(self.config_path, config.model_copy(update={"plugins": entries}).to_toml().encode())

    def write_scenario(self, scenario: Mapping[str, Any]) -> None:
        """Write who sees what."""
        write_json(self.path / "scenario.json", scenario)

    def config(self) -> Config:
        """Return what the run was started with; a folder that this version cannot read is refused, with a way out."""
        try:
            where = str(self.config_path)
            table = as_recorded(read_toml(self.config_path), where=where)
            return make_config(table, where=where, folder=self.path)
        except PluginError:
            raise  # it says itself what is wrong, whatever the version
        except ConfigError as error:
            raise ConfigError(
                f"{error}; the run may be of another version of fedfeat: "
                f"move {self.path} away, or go on with the version in its env.json"
            ) from error

    def plugins(self) -> list[str]:
        """Return by name and checksum which plugins the run began with; nothing is loaded."""
        entries = read_toml(self.config_path).get("plugins", [])
        return [without_folder(str(entry)) for entry in entries]

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Add one line; what was written survives a kill."""
        with disk_errors(self.events_path), self.events_path.open("a") as file:
            file.write(json.dumps(json_ready(event), allow_nan=False) + "\n")

    def events_size(self) -> int:
        """Return how long the events file is, which a checkpoint remembers."""
        return self.events_path.stat().st_size if self.events_path.exists() else 0

    def cut_events(self, size: int, checksum: str | None = None) -> None:
        """Drop lines after a checkpoint, which a resumed run writes again; say if those before were changed."""
        if self.events_size() > size:
            os.truncate(self.events_path, size)
        if checksum is not None and (not self.events_path.exists() or sha256(self.events_path) != checksum):
            warnings.warn(
                f"{self.events_path.name} is not as it was at the checkpoint ({self.events_size()} of {size} bytes are "
                f"left, or some were changed): the run goes on, and its report lacks those rounds; see {self.path}",
                stacklevel=2,
            )

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

    def remove_models(self, after: int) -> None:
        """Remove the kept models of tasks (from 0) after one, which the run will end again."""
        for path in (self.path / "models").glob("task-*.safetensors"):
            if int(path.stem.removeprefix("task-")) > after + 1:
                path.unlink()

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished run, None otherwise."""
        if not self.result_path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self.result_path.read_text())
        except ValueError:
            return None  # damaged: the last checkpoint gives it again
        return found


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


@cache
def checkout_commit() -> str:
    """Return the commit of the checkout that tracks this program, with '+' after it where files were changed.

    Sources that travel without their repository take it along as ``FEDFEAT_COMMIT``.
    """
    here = Path(__file__).parent
    if told := os.environ.get("FEDFEAT_COMMIT"):
        return told
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)  # a repository around a virtual environment
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
