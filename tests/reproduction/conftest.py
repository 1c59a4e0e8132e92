"""Records made by hand, of runs that never were; a folder of a test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paper_records import MakeRecord

from fedfeat.config.config import make_config
from fedfeat.config.presets import Cell, experiment
from fedfeat.runs.identity import deciding_settings
from fedfeat_reproduction.records import Record

CELL = Cell("cifar10", 5, 0.5)


@pytest.fixture
def make_record() -> MakeRecord:
    """Return a function that invents a record: final accuracies and settings to change are given."""

    def make(
        method: str,
        final: float,
        *,
        plain: float | None = None,
        variants: dict[str, float] | None = None,
        cell: Cell = CELL,
        seed: int = 2023,
        overrides: tuple[str, ...] = (),
        **changes: Any,
    ) -> Record:
        config = make_config(experiment(cell, method, seed), overrides)
        uncorrected = final if plain is None else plain

        def triangle(value: float) -> list[list[float]]:
            return [[value + j - i for j in range(i + 1)] for i in range(cell.tasks)]

        fields: dict[str, Any] = {
            "method": method,
            "dataset": config.data.name,
            "seed": seed,
            "images": "invented",
            "final_accuracy": final,
            "final_accuracy_uncorrected": uncorrected,
            "accuracy_after_task": [*[90.0] * (cell.tasks - 1), final],
            "accuracy_after_task_uncorrected": [*[90.0] * (cell.tasks - 1), uncorrected],
            "accuracy_matrix": triangle(final),
            "accuracy_matrix_uncorrected": triangle(uncorrected),
            "accuracy_of_variants": {k: [v] for k, v in (variants or {}).items()},
            "accuracy_matrix_of_variants": {k: triangle(v) for k, v in (variants or {}).items()},
            "average_incremental_accuracy": 80.0,
            "forgetting": 10.0,
            "backward_transfer": -10.0,
            "bytes_up": 1,
            "bytes_down": 1,
            "config": deciding_settings(config),
            "environment": {"gpu": "a GPU", "torch": "2"},
            "commit": "abc",
        }
        return Record.model_validate(fields | changes)

    return make


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, on a terminal of known width."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path
