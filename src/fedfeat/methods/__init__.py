"""Methods: one small file each; a named method is a composition of parts."""

import importlib
import pkgutil

from fedfeat.methods.method import LossTerm, Method, Step
from fedfeat.methods.registry import PARTS, addon, base, compose, parts_of, settings_tables

for _module in pkgutil.iter_modules(__path__):  # importing a method's file registers it
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["PARTS", "LossTerm", "Method", "Step", "addon", "base", "compose", "parts_of", "settings_tables"]
