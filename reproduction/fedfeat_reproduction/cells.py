"""The settings that the paper's tables are made of beyond the presets: earlier and other forms, and small ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedfeat.config.presets import SEEDS, Cell, Table, bare_experiment, digits

# What the first runs had; pairs of them still tell what a choice is worth.
EARLIER_RECIPE: Mapping[str, Any] = {
    "feat": {"logits": "cosine"},
    "calibrate": {"linear_deltas": tuple(i / 4 for i in range(41))},
}
# Other forms of the correction, by the words that follow a row's name: the abstract speaks of removing a component, the
# formula also adds one; the energies are to be divided by the rank, and are divided by one less.
OTHER_FORMS: Mapping[str, tuple[str, ...]] = {
    "removing alone": ("feat.egc.tail_boost=false",),
    "removing alone, by rank": ("feat.egc.rank_norm=true_rank", "feat.egc.tail_boost=false"),
}


def parse_cell(text: str, clients: int = 5) -> Cell:
    """Read ``cifar10-5-beta0.5`` or ``cifar10-5-beta0.5-k10``."""
    match = re.fullmatch(r"(\w+)-(\d+)-beta([\d.]+)(?:-k(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a cell such as cifar10-5-beta0.5")
    return Cell(match[1], int(match[2]), float(match[3]), int(match[4] or clients))


def earlier_experiment(cell: Cell, method: str, seed: int = SEEDS[0]) -> Table:
    """Return the same experiment as the first runs had it."""
    return {**bare_experiment(cell, method, seed), **EARLIER_RECIPE}


QUICK_NOTE = (
    "quick: built-in digits, a small network and few rounds; not the paper's setting, so the published values "
    "beside these numbers only show where they would go"
)
QUICK_ROUNDS = 6  # enough for a linear classifier to remember something
_QUICK_BUDGETS = {3: 24, 5: 14, 10: 7}


def quick_experiment(cell: Cell, method: str, seed: int = SEEDS[0]) -> Table:
    """Return the same experiment in small: the built-in digits, seconds on a processor."""
    table = digits()
    table["scenario"] = {
        "tasks": cell.tasks,
        "clients": cell.clients,
        "beta": cell.beta,
        "budget": _QUICK_BUDGETS[cell.tasks],
    }
    table["train"] = {**table["train"], "rounds": QUICK_ROUNDS}
    return {**table, "method": method, "seed": seed}
