"""The experiments behind tables, figures and choices: cells of the paper as published, or small ones on the digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedfeat.config.config import Config, make_config
from fedfeat.config.presets import PARTITION, RECIPE, SEEDS, Cell, Table, digits, experiment
from fedfeat.core.errors import ConfigError, FedfeatError
from fedfeat.data.settings import home
from fedfeat.runs.identity import COMPUTATION, decides
from fedfeat_reproduction.sources import CALIBRATE, can_calibrate, trained_as
from fedfeat_reproduction.tables import PaperEntry

Purpose = Literal["table", "figure", "choices"]
QUICK_NOTE = (
    "quick: built-in digits, a small network and few rounds; not the paper's setting, so the published values "
    "beside these numbers only show where they would go"
)
QUICK_MARK = "built-in digits, a small network, few rounds: not the paper's setting"  # below a drawing
QUICK_ROUNDS = 6  # enough for a linear classifier to remember something
# Exemplars of each task by the number of tasks; with fewer than 40 no client can hold any back for calibration.
QUICK_BUDGETS = {"table": {3: 24, 5: 14, 10: 7}, "figure": {3: 30, 5: 20}, "choices": {5: 40}}
OF_THE_CELL = ("data.name", "scenario.tasks", "scenario.clients", "scenario.beta")


def settings(
    cell: Cell, method: str, seed: int = SEEDS[0], *, quick: bool = False, purpose: Purpose = "table"
) -> Table:
    """Return the experiment of a cell: as published, or ``quick`` with as many tasks and clients on the digits."""
    if not quick:
        return experiment(cell, method, seed)
    table = {**digits(), "method": method, "seed": seed}
    budget = QUICK_BUDGETS[purpose][cell.tasks]
    scenario = {"tasks": cell.tasks, "clients": cell.clients, "beta": cell.beta, "budget": budget}
    if purpose == "choices":  # made with our answers; how much is held out is not one, with so few exemplars
        table |= {key: value for key, value in RECIPE.items() if key != "calibrate"}
        scenario |= PARTITION
    if "clip2fl" in method.split("+"):
        table |= _uninformed_teacher()
    return {**table, "scenario": scenario, "train": {**table["train"], "rounds": QUICK_ROUNDS}}


@cache
def _uninformed_teacher() -> dict[str, Any]:
    """Return settings of a teacher without knowledge, for CLIP is not built in."""
    from fedfeat.data import DataSettings, load_dataset
    from fedfeat.methods.clip2fl.stand_in import teacher_settings

    teacher = teacher_settings(home() / "stand-in", load_dataset(DataSettings(name="digits")))
    return {"clip2fl": teacher.model_dump(by_alias=True, exclude_none=True)}


@dataclass(frozen=True)
class TableRuns:
    """How the experiments of a table are to be run: each training once, whatever number of entries it serves."""

    seeds: Sequence[int] = SEEDS
    quick: bool = False
    calibrate: bool = False
    overrides: Sequence[str] = ()

    def configs(self, entries: Sequence[PaperEntry]) -> tuple[list[Config], list[str]]:
        """Return the experiments that entries need, each once, and why some of them cannot be run here.

        They come seed by seed, so that first figures come early. Where none of them can be run, that is an error.
        """
        pairs = dict.fromkeys((entry.cell, self.method(entry.method)) for entry in entries)
        found: list[Config] = []
        refused: dict[str, dict[str, None]] = {}  # why, and which methods
        for seed in self.seeds:
            for cell, method in pairs:
                try:
                    table = settings(cell, method, seed, quick=self.quick)
                    found.append(make_config(table, self.overrides, where="--set"))
                except ConfigError as error:
                    refused.setdefault(str(error), {})[method] = None
        if refused and not found:
            raise ConfigError("; ".join(refused))
        return found, [f"{', '.join(methods)}: {why}" for why, methods in refused.items()]

    def method(self, method: str) -> str:
        """Return the method to train for a figure; with calibration where that is asked for and possible."""
        trained = trained_as(method)
        return trained + CALIBRATE if self.calibrate and can_calibrate(trained) else trained


def engine_overrides(engine: str | None, data: Path | None) -> list[str]:
    """Return the settings behind ``--engine`` and ``--data``."""
    overrides = [] if data is None else [f'data.path="{data.expanduser()}"']
    if engine is not None:
        overrides.append(f"engine.name={engine}")
    if engine == "cuda":
        overrides += ["engine.device=cuda", "engine.precision=bf16"]
    return overrides


def first_seeds(count: int) -> tuple[int, ...]:
    """Return the first so many seeds: 2023, 2024, ..."""
    return tuple(range(SEEDS[0], SEEDS[0] + count))


def refuse_fixed(name: str, overrides: Iterable[str], *, has_cells: bool) -> None:
    """Refuse ``--set`` of what is not free: methods and seeds have options of their own, and a cell is what it is."""
    for override in overrides:
        key = _key(override)
        if key == "method":
            raise FedfeatError(f"--set {override}: {name} has its own methods; choose some of them with --only")
        if key == "seed":
            raise FedfeatError(f"--set {override}: --seeds says how many seeds are run, from 2023 on")
        if has_cells and key in OF_THE_CELL:
            raise FedfeatError(f"--set {override}: {name} is made of cells with their own {key}; choose with --only")


def deciding_overrides(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the changes that a figure depends on: not where files are, nor how clients are run."""
    return tuple(o for o in overrides if _key(o) == "recipe" or decides(_key(o), without=COMPUTATION))


def _key(override: str) -> str:
    return override.partition("=")[0].strip()
