"""Accuracy over something, one panel per data set and one line per method: the form of figures 5, 6 and 8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedfeat.runs.sweep import RunOutcome
from fedfeat_reproduction.figures.figure import Finding, Numbers, Row, mean_and_std
from fedfeat_reproduction.figures.style import (
    COLUMN,
    INK,
    PAGE,
    data_name,
    method_look,
    method_name,
    paper_style,
    plain_name,
)

METHODS = ("fedcbdr+feat", "refed+feat", "fedcbdr", "refed")
PAIRS = (("fedcbdr+feat", "fedcbdr"), ("refed+feat", "refed"))  # FEAT, and the base it is built on
Points = Callable[[RunOutcome], list[tuple[int, float]]]  # a run -> (place on the x axis, accuracy in percent)


def accuracy_rows(
    runs: Sequence[RunOutcome], x: str, points: Points, published: Callable[[RunOutcome, int], float | None]
) -> list[Row]:
    """Return mean and deviation over seeds per data set, method and place."""
    found: dict[tuple[str, str, int], list[float]] = {}
    stated: dict[tuple[str, str, int], float | None] = {}
    for run in runs:
        for place, accuracy in points(run):
            key = run.config.data.name, run.config.method, place
            found.setdefault(key, []).append(accuracy)
            stated[key] = published(run, place)
    rows: list[Row] = []
    for (data, method, place), values in found.items():
        mean, std = mean_and_std(values)
        rows.append(
            {"data": data, "method": method, x: place, "accuracy": mean, "std": std, "seeds": len(values)}
            | {"published": stated[data, method, place]}
        )
    order = {name: number for number, name in enumerate(METHODS)}
    return sorted(rows, key=lambda r: (data_order(r), order.get(str(r["method"]), 9), r[x]))


def data_order(row: Row) -> int:
    """Return the place of a data set in the paper's order."""
    names = ["cifar10", "cifar100", "tiny-imagenet"]
    return names.index(str(row["data"])) if row["data"] in names else len(names)


def draw_panels(numbers: Numbers, x: str, label: str, *, evenly: bool) -> Any:
    """Draw the panels; ``evenly`` puts the places side by side whatever the distance between their values."""
    data = numbers.values("data")
    with paper_style() as figure_class:
        width = COLUMN if len(data) == 1 else PAGE
        figure = figure_class(figsize=(width, 2.25 if len(data) == 1 else 1.95), layout="constrained")
        axes = figure.subplots(1, len(data), squeeze=False)[0]
        for axis, name in zip(axes, data, strict=True):
            _draw_panel(axis, numbers.where(data=name), x, evenly)
            axis.set_title(data_name(name))
            axis.set_xlabel(label)
        axes[0].set_ylabel("accuracy (%)")
        handles = axes[0].get_legend_handles_labels()[0] + _published_mark(numbers)
        figure.legend(handles=handles, loc="outside upper center", ncols=5, columnspacing=1.1, handlelength=2.2)
    return figure


def _published_mark(numbers: Numbers) -> list[Any]:
    from matplotlib.lines import Line2D

    stated = any(row["published"] is not None for row in numbers.rows)
    return [Line2D([], [], marker="x", ls="none", ms=4.5, mew=1.1, color=INK, label="published")] if stated else []


def _draw_panel(axis: Any, rows: list[Row], x: str, evenly: bool) -> None:
    places = sorted({row[x] for row in rows})
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        line = [row for row in rows if row["method"] == method]
        at = np.array([places.index(row[x]) if evenly else row[x] for row in line], dtype=float)
        mean, std = (np.array([row[key] for row in line], dtype=float) for key in ("accuracy", "std"))
        look = method_look(method)
        axis.plot(at, mean, label=method_name(method), clip_on=False, **look)
        stated = [
            (place, row["published"]) for place, row in zip(at, line, strict=True) if row["published"] is not None
        ]
        if stated:
            axis.plot(*zip(*stated, strict=True), marker="x", ls="none", ms=4.5, mew=1.1, color=look["color"], zorder=6)
        if std.any():
            axis.fill_between(at, mean - std, mean + std, color=look["color"], alpha=0.13, lw=0)
    axis.set_xticks(range(len(places)) if evenly else places, [str(p) for p in places])
    axis.margins(x=0.06)
    axis.locator_params(axis="y", nbins=6)
    low, high = axis.get_ylim()
    axis.set_ylim(max(0.0, low), min(100.0, high))
    axis.tick_params(axis="x", color=INK)


def gains_over_base(numbers: Numbers, x: str, data: str) -> dict[str, dict[int, float]]:
    """Return FEAT's accuracy less its base's in one panel, by method and place."""
    found: dict[str, dict[int, float]] = {}
    for feat, base in PAIRS:
        higher, lower = (
            {row[x]: row["accuracy"] for row in numbers.where(data=data, method=method)} for method in (feat, base)
        )
        gains = {place: higher[place] - lower[place] for place in higher if place in lower}
        if gains:
            found[feat] = gains
    return found


def feat_above_base(numbers: Numbers, x: str, where: str) -> list[Finding]:
    """Hold FEAT against its base at every place of every panel; nothing is said where there are not both."""
    gains = [
        (gain, plain_name(method), place, data)
        for data in numbers.values("data")
        for method, by_place in gains_over_base(numbers, x, data).items()
        for place, gain in by_place.items()
    ]
    if not gains:
        return []
    above = sum(gain > 0 for gain, *_ in gains)
    gain, method, place, data = min(gains)
    seen = f"above at {above} of {len(gains)} {where}"
    seen += f"; smallest gain {gain:+.1f} points ({method}, {data}, {x} {place})"
    return [Finding("FEAT_F and FEAT_R are above their bases everywhere", seen, above == len(gains))]
