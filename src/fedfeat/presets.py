"""Named experiments: each is a function of nothing that returns a complete configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedfeat.paper.cells import DATASETS, Cell, experiment
from fedfeat.paper.published import BASELINES, Value, read_entries

Table = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """A named configuration."""

    name: str
    summary: str
    table: Callable[[], Table]
    published: Value | None = None  # what the paper reports for it, in percent


SMALL_LANDER = {
    "rounds": 8,
    "warmup": 2,
    "batch": 64,
    "steps": 20,
    "student_steps": 20,
    "input_statistics": "data",
}


def digits() -> Table:
    """The demonstration: few exemplars, skewed clients, two minutes on two cores."""
    return {
        "method": "fedcbdr+feat",
        "seed": 2023,
        "data": {"name": "digits"},
        "scenario": {"tasks": 5, "clients": 5, "beta": 0.5, "budget": 14},
        "train": {"rounds": 10, "local_epochs": 2, "batch": 32, "lr": 0.05},
        "engine": {"device": "cpu", "threads": 1},
        "finetune": {"softmax": "all"},
        "fedcbdr": {"mode": "class_quota"},
        "feat": {"logits": "cosine"},
        "target": {"batch": 32, "generation": {"rounds": 8, "warmup": 4, "batch": 128, "student_steps": 20}},
        "lander": {"batch": 32, "generation": SMALL_LANDER},
    }


def of_cell(cell: Cell) -> Callable[[], Table]:
    """Return the paper's experiment for a cell, with FEAT_F; ``--set method=...`` takes another method."""
    return lambda: experiment(cell, "fedcbdr+feat")


def _paper_presets() -> list[Preset]:
    """Return the cells with five clients and a skew of 0.5, which every data set and number of tasks has."""
    values = {e.cell: e.published for e in read_entries("main.csv", BASELINES) if e.method == "fedcbdr+feat"}
    return [
        Preset(cell.split, _summary(cell, value), of_cell(cell), value)
        for cell, value in values.items()
        if value is not None and cell.beta == 0.5 and cell.clients == 5
    ]


def _summary(cell: Cell, value: Value) -> str:
    tasks = f"{DATASETS[cell.data]} in {cell.tasks} tasks, {cell.budget} exemplars per task"
    return f"{tasks}; the paper reports {value.mean} ± {value.std} for FEAT_F"


PRESETS: dict[str, Preset] = {
    p.name: p
    for p in (
        Preset("digits", "built-in digits, 5 tasks, 5 skewed clients, 14 exemplars per task", digits),
        *_paper_presets(),
    )
}
