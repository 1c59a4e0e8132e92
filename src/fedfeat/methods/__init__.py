"""Methods: a file or a folder per paper; importing this package registers all of them."""

import importlib
import pkgutil

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.registry import (
    ALIASES,
    PARTS,
    addon,
    all_methods,
    base,
    canonical,
    compose,
    declared_labels,
    example_methods,
    parts_of,
    settings_tables,
)
from fedfeat.algorithm.step import LossTerm, Step

for _module in pkgutil.iter_modules(__path__):  # importing a method's file registers it
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ALIASES",
    "PARTS",
    "LossTerm",
    "Method",
    "Step",
    "addon",
    "all_methods",
    "base",
    "canonical",
    "compose",
    "declared_labels",
    "example_methods",
    "parts_of",
    "settings_tables",
]
