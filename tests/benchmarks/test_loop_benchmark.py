"""The benchmark runs and leaves whole numbers behind; how fast anything is, a test does not say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("loop-benchmark")]  # run once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, str(ROOT / "benchmarks" / "loop.py"), "--quick", "--device", "cpu", "--out", str(out)]
    # No FEDFEAT_DATA: noise is decoded faster than CIFAR.
    environment = {k: v for k, v in os.environ.items() if k != "FEDFEAT_DATA"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.iterdir()
    assert path.name.startswith("loop-")
    assert path.name.endswith("-quick.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_ratios_are_positive_numbers(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        assert 0 < row["ratio"] < float("inf"), row
        assert 0 < row["ratio_of_best"] < float("inf"), row
        assert row["ratio_of_cpu"] is None or row["ratio_of_cpu"] > 0
        assert len(row["values"]) == len(row["base_values"]) >= 1


def test_every_section_is_there(result: dict[str, Any]) -> None:
    sections = [row["section"] for row in result["rows"]]
    assert list(dict.fromkeys(sections)) == [
        "our loop against a bare one",
        "replay costs nothing but its samples",
        "10 participants, few or many registered",
        "parts of FEAT, small CNN",
        "parts of FEAT, ResNet-18",
    ]
    parts = [row["variant"] for row in result["rows"] if row["section"] == "parts of FEAT, small CNN"]
    assert parts == ["replay+etf", "replay+etf+gsa", "replay+etf+egc", "replay+feat"]


def test_both_loops_did_the_same(result: dict[str, Any]) -> None:
    assert set(result["same_model"]) == {"small CNN", "ResNet-18"}
    assert all(same["passed"] for same in result["same_model"].values())


def test_the_circumstances_are_recorded(result: dict[str, Any]) -> None:
    assert result["quick"] is True
    assert {"name", "device", "cpus", "platform"} <= set(result["hardware"])
    assert {"fedfeat", "python", "torch", "numpy"} <= set(result["versions"])
    assert result["settings"]["against_bare"][1]["data"] == "noise of CIFAR's shape"
