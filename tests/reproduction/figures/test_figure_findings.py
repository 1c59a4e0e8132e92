"""What is said about figures 3, 4, 9 and 10: each statement of the paper can hold and can fail."""

from __future__ import annotations

from typing import Any

import pytest

from fedfeat_reproduction.figures import FIGURES, Numbers
from fedfeat_reproduction.figures.style import GSA


def verdicts(name: str, rows: list[dict[str, Any]]) -> list[bool]:
    return [finding.holds for finding in FIGURES[name].findings(Numbers(rows))]


def alignment(task: int, method: str, tail: float, head: float) -> list[dict[str, Any]]:
    values = [("tail", tail - 0.01), ("tail", tail + 0.01), ("head", head)]
    return [{"task": task, "method": method, "group": group, "alignment": value} for group, value in values]


def test_alignment() -> None:
    without, with_gsa = GSA
    rows = alignment(3, without, 0.8, 0.9) + alignment(3, with_gsa, 0.85, 0.9)
    assert verdicts("figure-3", rows) == [True, True]
    rows = alignment(5, without, 0.9, 0.8) + alignment(5, with_gsa, 0.7, 0.9)
    assert verdicts("figure-3", rows) == [False, False]
    assert verdicts("figure-3", alignment(5, without, 0.7, 0.8)) == [True]  # nothing is said of runs that are missing


def drift(method: str, own: float, head: float, share: float) -> dict[str, Any]:
    return {"method": method, "class": "all", "own": own, "nearest_head": head, "head_dominated": share}


@pytest.mark.parametrize(
    ("without", "with_gsa", "expected"),
    [
        ((0.3, 0.4, 0.5), (0.4, 0.3, 0.4), [True, True, True]),
        ((0.4, 0.3, 0.4), (0.3, 0.4, 0.05), [False, True, False]),
        ((0.3, 0.4, 0.5), (0.9, 0.2, 0.2), [True, False, True]),
    ],
)
def test_drift(without: tuple[float, ...], with_gsa: tuple[float, ...], expected: list[bool]) -> None:
    assert verdicts("figure-4", [drift(GSA[0], *without), drift(GSA[1], *with_gsa)]) == expected
    assert verdicts("figure-4", [drift(GSA[0], *without)]) == []


def means(method: str, group: str, spread: float, on_object: float, confidence: float) -> dict[str, Any]:
    return {"method": method, "group": group, "spread": spread, "on_object": on_object, "confidence": confidence}


def test_attention() -> None:
    better = [means(GSA[0], g, 0.6, 0.4, 0.5) for g in ("tail", "head")]
    better += [means(GSA[1], g, 0.5, 0.5, 0.6) for g in ("tail", "head")]
    assert verdicts("figure-9", better) == [True] * 4
    swapped = [{**row, "method": GSA[1 - GSA.index(row["method"])]} for row in better]
    assert verdicts("figure-9", swapped) == [False] * 4
    photographs = [{k: v for k, v in row.items() if k != "on_object"} for row in better]
    assert verdicts("figure-9", photographs) == [True] * 3  # nobody marked the object in a photograph


def spans(part: str, head: float, tail: float) -> dict[str, Any]:
    return {"panel": "e", "class": "class 1", "part": part, "head": head, "tail": tail}


def test_correction() -> None:
    cases: list[dict[str, Any]] = [{"panel": panel, "class": "cat"} for panel in "abcd"]
    untouched = spans("whole", float("nan"), float("nan"))
    rows = [*cases, spans("removed", 1.0, 0.3), spans("whole", 0.8, 0.5), untouched]
    assert verdicts("figure-10", rows) == [True, True, True]
    rows = [*cases[:3], spans("removed", 0.2, 0.3), spans("whole", 0.8, 0.9)]
    assert verdicts("figure-10", rows) == [False, False, False]
    assert verdicts("figure-10", [*cases, spans("removed", 1.0, 0.3)]) == [True, True]  # nothing but that is changed
    assert verdicts("figure-10", [*cases, untouched]) == [True]
