"""The tables of the paper: their entries, in the paper's order, and what is worth knowing before reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedfeat.config.presets import Cell
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat_reproduction.published import ABLATION, BASELINES, STRATEGIES, TASKS, Entry, Value, read_entries


@dataclass(frozen=True)
class PaperTable:
    """One table: numbers with their place, and a remark."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    note: str
    unit: str = "accuracy in percent after the last task"


def _communication() -> tuple[Entry, ...]:
    cell = Cell("cifar10", 5, 0.5)
    rows = {"Re-Fed+": 0.0, "FEAT_R": 2.0, "FedCBDR": 0.0, "FEAT_F": 2.0}
    return tuple(
        Entry(label, BASELINES[label], cell, Value(count), measure="numbers sent") for label, count in rows.items()
    )


MAIN, COMMUNICATION = "table-main", "table-communication"

TABLES: Mapping[str, PaperTable] = {
    table.name: table
    for table in (
        PaperTable(
            MAIN,
            "Main results: nine methods, three data sets, two task counts, two skews, 5 and 10 clients",
            tuple(read_entries("main.csv", BASELINES)),
            "Three seeds in the paper, which does not name them. FEAT_F is `fedcbdr+feat`, FEAT_R is `refed+feat`.",
        ),
        PaperTable(
            "table-ablation",
            "Ablation: FedCBDR, then the fixed classifier, alignment and correction added",
            tuple(read_entries("ablation.csv", ABLATION)),
            "From FedCBDR to +ETF two things change in the paper: the classifier comes, and FedCBDR's own loss goes. "
            "Correction happens at prediction alone, so one training run gives a row with it and a row without.",
        ),
        PaperTable(
            "table-strategies",
            "Alternative strategies on top of FedCBDR, five tasks everywhere",
            tuple(read_entries("strategies.csv", STRATEGIES)),
            "Means of three runs, without deviations. CLIP2FL needs features of a CLIP model, which you supply; with "
            "`--quick` its teacher knows nothing.",
        ),
        PaperTable(
            "table-tasks",
            "Accuracy on each task's classes after the last task",
            tuple(read_entries("tasks.csv", TASKS)),
            "One run in the paper, it seems: weighted by classes, its CIFAR-10 rows average to 61.90, 68.89, 71.19 and "
            "76.95, where the ablation table says 63.32, 68.54, 69.12 and 72.67.",
            "accuracy in percent on one task's classes after the last task",
        ),
        PaperTable(
            COMMUNICATION,
            "Communication: numbers that a client sends per round beyond its model",
            _communication(),
            "The paper prints no table; its text says that FEAT adds two numbers per client and round. Ours adds three "
            "from the second task on (two priors and the number of samples behind them), none in the first.",
            "numbers per client and round, apart from weights, losses for the log and the number of images",
        ),
    )
}


def find_table(name: str) -> PaperTable:
    """Return a table by its name."""
    if name not in TABLES:
        raise FedfeatError(f"{name}: the paper has no such table; {nearest(name, TABLES)} (see 'fedfeat paper list')")
    return TABLES[name]
