"""Real runs on the toy problem with the models of every task kept; each is trained once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfeat.runs.sweep import RunOutcome, finish
from toy import toy_config, write_toy

METHODS = ("fedcbdr+etf", "fedcbdr+etf+egc", "fedcbdr+feat")


@pytest.fixture(scope="session")
def toy_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunOutcome]:
    folder = tmp_path_factory.mktemp("figures")
    data = {"path": str(write_toy(folder / "toy.npz"))}
    changes = {"data": data, "run": {"keep_models": True, "checkpoint_seconds": 20.0}}
    configs = [toy_config(method, **changes) for method in METHODS]
    outcomes = finish(configs, folder / "runs")
    assert [o.error for o in outcomes] == [None] * len(METHODS)
    return dict(zip(METHODS, outcomes, strict=True))


@pytest.fixture(scope="session")
def gsa_runs(toy_runs: dict[str, RunOutcome]) -> list[RunOutcome]:
    return [toy_runs[method] for method in METHODS[1:]]


@pytest.fixture
def figures_folder(tmp_path: Path) -> Path:
    return tmp_path / "figures"
