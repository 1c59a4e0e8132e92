"""Text features from a file: rows found by class name, never by guessing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from fedfeat.core.errors import ConfigError
from fedfeat.core.files import expanded
from fedfeat.data.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES
from fedfeat.methods.class_names.settings import TextSettings, readable

ARRIVAL = "arrival"
FEATURES = "features"
KNOWN_NAMES = {"cifar10": CIFAR10_CLASSES, "cifar100": CIFAR100_CLASSES}


def table_features(settings: TextSettings, names: Sequence[str]) -> np.ndarray:
    """Return the rows of these classes: [C, d]."""
    path = table_path(settings)
    rows, known = read_table(path)
    known = _row_names(settings.names, path) if settings.names not in (None, ARRIVAL) else known
    if settings.names == ARRIVAL:
        if len(rows) < len(names):
            raise ConfigError(f"text.path: {path} has {len(rows)} rows for {len(names)} classes; give one per class")
        return rows[: len(names)]
    if known is None:
        raise ConfigError(
            f"text.path: {path} does not say which class a row belongs to; put a list of class names into "
            f"{path.with_suffix('.json').name} beside it, or set text.names"
        )
    if len(known) != len(rows):
        raise ConfigError(f"text.path: {path} has {len(rows)} rows and {len(known)} class names; give one name per row")
    place = {readable(name): row for row, name in enumerate(known)}
    missing = [name for name in names if readable(name) not in place]
    if missing:
        raise ConfigError(
            f"text.path: {path} has no row for the class {missing[0]!r} ({len(missing)} of {len(names)} are missing); "
            "add them, or choose another text.encoder"
        )
    return rows[[place[readable(name)] for name in names]]


def table_path(settings: TextSettings) -> Path:
    """Return the table's file, or say that there is none."""
    path = expanded(settings.path)
    if path is None:
        raise ConfigError("text.path: the encoder 'table' needs a .npy or .safetensors file; set path")
    if not path.is_file():
        raise ConfigError(f"text.path: {path} is not a file; give the .npy or .safetensors file of the table")
    return path


def read_table(path: Path) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return all rows in float32 and, where the file or the one beside it says so, their class names."""
    rows: np.ndarray
    names: tuple[str, ...] | None
    if path.suffix == ".npy":
        rows, names = _read_npy(path), None
    elif path.suffix == ".safetensors":
        rows, names = _read_safetensors(path)
    else:
        raise ConfigError(f"text.path: expected a .npy or .safetensors file, got {path.name}; convert it")
    beside = path.with_suffix(".json")
    if names is None and beside.is_file():
        names = _read_names(beside)
    if rows.ndim != 2 or rows.shape[1] < 2 or not np.issubdtype(rows.dtype, np.floating):
        shape = "x".join(map(str, rows.shape))
        raise ConfigError(
            f"text.path: {path} should hold real numbers, a row per class, got {rows.dtype} {shape}; save [classes, d]"
        )
    if not np.isfinite(rows).all():
        raise ConfigError(f"text.path: {path} holds values that are not finite; build the table again")
    return rows.astype(np.float32), names


def _read_npy(path: Path) -> np.ndarray:
    try:
        loaded: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"text.path: {path} cannot be read ({error}); save it with numpy.save") from error
    return loaded


def _read_safetensors(path: Path) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read one tensor called ``features`` (names in the metadata), or one vector per class name."""
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            keys = list(file.keys())
            if FEATURES not in keys and keys:
                return np.stack([file.get_tensor(k) for k in keys]), tuple(keys)
            names = tuple(json.loads(metadata["names"])) if "names" in metadata else None
            return file.get_tensor(FEATURES), names
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise ConfigError(
            f"text.path: {path} cannot be read ({error}); save one tensor called {FEATURES!r}, or a vector per class"
        ) from error


def _row_names(setting: str | None, path: Path) -> tuple[str, ...]:
    assert setting is not None
    if setting in KNOWN_NAMES:
        return KNOWN_NAMES[setting]
    file = Path(setting).expanduser()
    if not file.is_file():
        raise ConfigError(f"text.names: {setting!r} is not a file of names for {path.name}; give .json or .txt")
    return _read_names(file)


def _read_names(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8")
        names = json.loads(text) if path.suffix == ".json" else [line for line in text.splitlines() if line.strip()]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"text.names: {path} cannot be read ({error}); write a list of class names") from error
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"text.names: {path} should be a list of class names; write one name per row of the table")
    return tuple(names)
