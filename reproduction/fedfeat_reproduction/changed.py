"""``--set`` of the paper's tables, figures and choices: what may be changed, and which of it decides a figure."""

from __future__ import annotations

from collections.abc import Iterable

from fedfeat.core.errors import FedfeatError
from fedfeat.runs.identity import COMPUTATION, decides

OF_THE_CELL = ("data.name", "scenario.tasks", "scenario.clients", "scenario.beta")


def refuse_fixed(name: str, overrides: Iterable[str], *, has_cells: bool) -> None:
    """Refuse settings that are not free: methods and seeds have options of their own, and a cell is what it is."""
    for override in overrides:
        key = _key(override)
        if key == "method":
            raise FedfeatError(f"--set {override}: {name} has its own methods; choose some of them with --only")
        if key == "seed":
            raise FedfeatError(f"--set {override}: --seeds says how many seeds are run, from 2023 on")
        if has_cells and key in OF_THE_CELL:
            raise FedfeatError(f"--set {override}: {name} is made of cells with their own {key}; choose with --only")


def counting(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the changes that a figure depends on: not where files are, nor how clients are run."""
    return tuple(o for o in overrides if decides(_key(o), without=COMPUTATION))


def _key(override: str) -> str:
    return override.partition("=")[0].strip()
