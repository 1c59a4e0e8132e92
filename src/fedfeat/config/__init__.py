"""One experiment as data: the whole configuration, presets by name, methods from outside."""

from importlib import import_module
from typing import Any

EXPORTED = ("Config", "differing_keys", "load_config", "make_config", "parse_config", "parse_override")


def __getattr__(name: str) -> Any:
    """Find what callers import from here; its methods need PyTorch, which presets and reports do without."""
    if name not in EXPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fedfeat.config.config"), name)
