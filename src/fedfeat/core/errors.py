"""Errors that a user can act on: one sentence that says where, what was expected, what came, what to do."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class FedfeatError(Exception):
    """Base of every error that is the user's to fix; the command line prints it without a traceback."""


class ConfigError(FedfeatError):
    """A configuration that cannot be run."""


class PluginError(ConfigError):
    """A file or package of methods that cannot be used, or is not the one that a run began with."""


class DataError(FedfeatError):
    """A data set that is missing, damaged or not what it says it is."""


class Refusal(FedfeatError):
    """What a client does not answer; the text names nothing private and may be told to the server."""


class CheckpointError(FedfeatError):
    """A run folder that cannot be continued."""


class TrainingDiverged(FedfeatError):
    """Losses or weights that are not finite: what follows would be noise."""


class MissingExtra(FedfeatError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'fedfeat[{extra}]'"
        )


def required(module: str, extra: str, purpose: str, package: str | None = None) -> Any:
    """Return a module of an optional package, or say how to install it; ``package`` is its name if it is another."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(package or module.partition(".")[0], extra, purpose) from error


def one_line(words: object, most: int = 300) -> str:
    """Return what a stranger said as one short line: without newlines, escape codes and marks that turn it round."""
    text = str(words)
    kept = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return kept if len(text) <= most else kept[:most] + " ..."


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one known name that may have been meant, if any is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'fedcbdr'?``, or the list of known names when none is close."""
    names = sorted(known)
    close = closest(name, names)
    return f"known: {', '.join(names)}" if close is None else f"did you mean {close!r}?"
