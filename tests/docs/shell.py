"""A reader at a terminal: saves the files of a page, types its commands, and expects every one to succeed.

Commands run as they stand. What is smaller is where they run: the experiment files of the folder train two tasks of one
round, and the built-in digits are a few of each class, so that a run takes a fraction of a second. What starts a
process of its own gets all digits.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from documents import ROOT, SHELL, Block, Command, commands_of
from PIL import Image
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.config.config import make_config
from fedfeat.data import load_dataset
from fedfeat.methods.clip2fl.stand_in import teacher_settings
from fedfeat.runs.experiment import start

QUICK: dict[str, dict[str, Any]] = {
    "scenario": {"tasks": 2},
    "train": {"rounds": 1, "local_epochs": 1},
    "target": {"generation": {"rounds": 1, "warmup": 0, "batch": 32, "student_steps": 2}},
    "lander": {"generation": {"rounds": 1, "warmup": 0, "batch": 32, "steps": 2, "student_steps": 2}},
    "fedfsa": {"server_epochs": 2},
    "clip2fl": {"features_per_class": 4, "match_epochs": 2, "retrain_epochs": 2, "repeats": 1},
}


class Reader:
    """Works through pages in one folder."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared, self.typed = folder, shared, 0
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "configs").mkdir()
        for path in (ROOT / "configs").glob("*.toml"):
            (folder / "configs" / path.name).write_text(quick(path))

    def read(self, blocks: list[Block]) -> None:
        """Save what the page says to save, and run what it says to run, in its order."""
        for block in blocks:
            if block.file:
                (self.folder / block.file).write_text(block.text)
            elif block.language in SHELL:
                for command in commands_of(block):
                    if command.excuse is None:
                        self.type(command)

    def type(self, command: Command) -> None:
        """Run one command and fail with its output if it fails."""
        self.typed += 1
        words = command.words
        for before, word in pairwise(words):
            if before != "--out":
                self._give(word)
        if words[0] == "fedfeat" and words[1] == "watch":
            watch_and_stop(words, self.folder)
        elif words[0] == "fedfeat":
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{command}: {command.text}\n{result.output}\n{result.exception!r}"
            assert result.output.strip(), f"{command}: {command.text} says nothing"
        else:
            done = subprocess.run(
                ["bash", "-c", command.text], cwd=self.folder, env=environment(), capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}: {command.text}\n{done.stdout}\n{done.stderr}"

    def _give(self, word: str) -> None:
        """Put what a page takes for granted, such as a finished run or a photo, where a command looks for it."""
        name = word.rpartition("=")[2].rstrip("/")
        if name in GIVEN and not (self.folder / name).exists():
            GIVEN[name](self.folder / name, self.shared)


def quick(path: Path) -> str:
    """Return a small version of an experiment file."""
    table = tomllib.loads(path.read_text())
    for name, values in QUICK.items():
        table[name] = {**table.get(name, {}), **values}
    if "sweep" in table:
        table["sweep"]["base"] = "digits.toml"  # the small one beside it, not the preset
    return tomli_w.dumps(table)


def environment() -> dict[str, str]:
    """Return the environment of a reader whose virtual environment is active and whose browser is silent."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "BROWSER": "true", "PYTHONUNBUFFERED": "1"}


def watch_and_stop(words: list[str], folder: Path) -> None:
    """Start a live page, look at it, and press Ctrl-C."""
    process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+\S*", process.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[0], timeout=60) as page:
            assert b"<html" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


def finished_run(folder: Path) -> None:
    """Train something small with FEAT and keep the model of each task."""
    table = tomllib.loads(quick(ROOT / "configs" / "digits.toml"))
    start(make_config({**table, "run": {"keep_models": True}}), folder)


def _copy(path: Path, shared: Path) -> None:
    shutil.copytree(shared / "run", path)


def _photo(path: Path, shared: Path) -> None:
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).save(path)


def _photos(path: Path, shared: Path) -> None:
    path.mkdir()
    _photo(path / "one.png", shared)
    _photo(path / "two.png", shared)


def _features(path: Path, shared: Path) -> None:
    table = tomllib.loads((ROOT / "configs" / "digits.toml").read_text())
    config = make_config(table)
    written = teacher_settings(path.parent, load_dataset(config.data, seed=config.seed)).teacher.path
    Path(str(written)).rename(path)


GIVEN: dict[str, Callable[[Path, Path], None]] = {
    "runs/mine": _copy,
    "runs/federated": _copy,
    "runs/demo": lambda path, shared: _copy(path / "run", shared),
    "photo.png": _photo,
    "photo.jpg": _photo,
    "photos": _photos,
    "more-photos": _photos,
    "FEATURES.safetensors": _features,
}
