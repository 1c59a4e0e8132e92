"""Where data sets and their decoded pixels lie."""

from __future__ import annotations

import os
from pathlib import Path

FOLDERS = {
    "cifar10": ("cifar10",),
    "cifar100": ("cifar100",),
    "tiny-imagenet": ("tiny-imagenet", "tiny-imagenet-subset"),
}


def home() -> Path:
    """Return the user's data folder: ``$FEDFEAT_HOME``, or ``~/.cache/fedfeat``."""
    chosen = os.environ.get("FEDFEAT_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedfeat"


def download_folder(name: str) -> Path:
    """Return the folder that ``fedfeat data get`` fills for a data set."""
    return home() / "data" / name


def search_places(name: str) -> list[Path]:
    """Return the folders searched for a named data set, in order."""
    places = []
    shared = os.environ.get("FEDFEAT_DATA")
    if shared:
        places = [Path(shared).expanduser() / folder for folder in FOLDERS[name]]
    return [*places, download_folder(name)]
