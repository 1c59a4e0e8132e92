"""The figures of a report; each function returns a matplotlib figure, for ``save_png`` or ``to_svg``."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.errors import FedfeatError
from fedfeat.report.collect import Group, group_runs
from fedfeat.report.run import Run
from fedfeat.report.series import (
    accuracy_curve,
    forgetting_curve,
    head_tail_curve,
    loss_curve,
    loss_names,
    mean_matrix,
    speed_curve,
    task_starts,
)
from fedfeat.report.style import GRID, INK, MUTED, PAGE, SERIES, drawing, look, save_png, short

WIDTH = 7.2
MAX_WRITTEN_TASKS = 10
MAX_TICKS = 12
LOG_SCALE_FROM = 50.0
DASHES = (0, (4, 2))
NEWEST, EARLIER = ("newest", SERIES[1], "s"), ("earlier", SERIES[0], "o")


def curves_png(runs: Sequence[Run], path: Path) -> None:
    """Write the accuracy after each task, one line per method, as a PNG file."""
    groups = drawable(group_runs(runs))
    if not groups:
        raise FedfeatError(f"{path}: nothing to draw, for no run has finished a task")
    save_png(accuracy_curves(groups), path)


def drawable(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with at least one finished task."""
    return [g for g in groups if any(run.accuracies() for run in g.shown)]


def accuracy_curves(groups: Sequence[Group]) -> Any:
    """Draw accuracy after each task: mean and deviation over seeds, thin dashes without the correction."""
    with drawing() as figure_class:
        figure = figure_class(figsize=(WIDTH, 4.0), layout="constrained")
        axis = figure.subplots()
        for index, group in enumerate(groups):
            mean, std = accuracy_curve(group, True)
            tasks = np.arange(1, len(mean) + 1)
            label = short(group.label) + ("" if group.finished else " (unfinished)")
            style = look(index)
            axis.plot(tasks, mean, lw=2, ms=5, mec=PAGE, mew=0.7, label=label, zorder=4, **style)
            axis.fill_between(tasks, mean - std, mean + std, color=style["color"], alpha=0.16, lw=0)
            if group.has_correction:
                plain = accuracy_curve(group, False)[0]
                axis.plot(tasks, plain, lw=1.1, ls=DASHES, color=style["color"], zorder=3)
        axis.set_ylabel("accuracy on all classes seen so far (%)")
        _task_axis(axis, groups)
        _percent_axis(axis)
        _legend(figure, axis, any(g.has_correction for g in groups))
    return figure


def _task_axis(axis: Any, groups: Sequence[Group], first: int = 1) -> None:
    last = max(len(run.accuracies()) for g in groups for run in g.shown)
    axis.set_xlabel("tasks learned")
    axis.set_xticks(range(first, last + 1, ceil(last / MAX_TICKS)))
    axis.set_xlim(first - 0.15, max(last, first + 1) + 0.15)


def _percent_axis(axis: Any) -> None:
    low = axis.get_ylim()[0]
    axis.set_ylim(max(0.0, 10 * np.floor(low / 10)) if low > 30 else 0.0, 101.5)


def _legend(figure: Any, axis: Any, dashed: bool) -> None:
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels()
    if dashed:
        handles.append(Line2D([], [], lw=1.1, ls=DASHES, color=INK))
        labels.append("without correction")
    columns = min(len(handles), 4 if max(map(len, labels), default=0) < 22 else 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.6)


def accuracy_matrices(groups: Sequence[Group]) -> Any:
    """Draw one heat map per method: accuracy on each task (across) after each task (down)."""
    matrices = [mean_matrix(group) for group in groups]
    with drawing() as figure_class:
        figure, axes = _panels(figure_class, len(groups), 2.15, 2.2)
        for axis, group, matrix in zip(axes, groups, matrices, strict=False):
            cells = np.ma.masked_invalid(matrix)
            image = axis.pcolormesh(cells, vmin=0, vmax=100, cmap="cividis", ec=PAGE, lw=0.8)
            axis.set_title(short(group.label, 30))
            _square(axis, len(matrix))
            if len(matrix) <= MAX_WRITTEN_TASKS:
                _write_cells(axis, matrix)
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=25, shrink=0.8 / ceil(len(groups) / 3), anchor=(0, 1))
        bar.set_label("accuracy (%)")
        bar.outline.set_visible(False)
    return figure


def _panels(
    figure_class: Any, count: int, width: float, height: float, most: int = 3, **share: bool
) -> tuple[Any, list[Any]]:
    """Return a figure with ``count`` panels of a size in inches, in rows; the unused ones are hidden."""
    columns = min(most, count)
    rows = ceil(count / columns)
    figure = figure_class(figsize=(0.8 + columns * width, 0.3 + rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **share).ravel())
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes


def _square(axis: Any, size: int) -> None:
    step = ceil(size / MAX_TICKS)
    for set_ticks in (axis.set_xticks, axis.set_yticks):
        set_ticks(np.arange(0, size, step) + 0.5, [str(t + 1) for t in range(0, size, step)])
    axis.tick_params(length=0)
    axis.set_aspect("equal")
    axis.invert_yaxis()
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("accuracy on task")
    axis.set_ylabel("after task")


def _write_cells(axis: Any, matrix: np.ndarray) -> None:
    size = 8.5 if len(matrix) <= 6 else 6
    for (i, j), value in np.ndenumerate(matrix):
        if not np.isnan(value):
            colour = "black" if value > 55 else "white"
            axis.text(j + 0.5, i + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=size, color=colour)


def forgetting_bars(groups: Sequence[Group]) -> Any:
    """Draw the forgetting of every old task, methods side by side, with the deviation over seeds."""
    with drawing() as figure_class:
        figure = figure_class(figsize=(WIDTH, 3.3), layout="constrained")
        axis = figure.subplots()
        share = 0.8 / len(groups)
        for index, group in enumerate(groups):
            mean, std = forgetting_curve(group)
            at = np.arange(1, len(mean) + 1) + (index - (len(groups) - 1) / 2) * share
            style = {"color": look(index)["color"], "ecolor": INK, "error_kw": {"lw": 1, "capsize": 2}}
            style["hatch"] = "////" if index >= len(SERIES) else None
            whiskers = std if std.any() else None
            axis.bar(at, mean, 0.92 * share, yerr=whiskers, label=short(group.label), **style)
        axis.axhline(0, color=MUTED, lw=0.8)
        last = max(len(run.accuracies()) for g in groups for run in g.shown)
        axis.set_xticks(range(1, last, ceil(last / MAX_TICKS)))
        axis.tick_params(axis="x", length=0)
        axis.set_xlabel("task")
        axis.set_ylabel("forgetting (points)")
        _legend(figure, axis, dashed=False)
    return figure


def head_tail(groups: Sequence[Group]) -> Any:
    """Draw accuracy on the newest and on all earlier classes after each task, without and with correction."""
    with drawing() as figure_class:
        figure, axes = _panels(figure_class, len(groups), 2.15 if len(groups) > 1 else 4.0, 2.5, sharey=True)
        for axis, group in zip(axes, groups, strict=False):
            for which, (name, colour, marker) in enumerate((NEWEST, EARLIER)):
                line = head_tail_curve(group, which, True)
                tasks = np.arange(2, len(line) + 2)
                axis.plot(tasks, line, lw=2, ms=4, marker=marker, color=colour, label=f"{name} classes")
                if group.has_correction:
                    plain = head_tail_curve(group, which, False)
                    axis.plot(tasks, plain, lw=1.1, ls=DASHES, color=colour)
            axis.set_title(short(group.label, 30))
            _task_axis(axis, groups, first=2)
            axis.set_ylim(-2, 102)
        axes[0].set_ylabel("accuracy (%)")
        _legend(figure, axes[0], any(g.has_correction for g in groups))
    return figure


def over_rounds(groups: Sequence[Group]) -> Any:
    """Draw every loss and the training speed over the rounds of the whole run."""
    names = loss_names(groups)
    count = len(names) + 1
    with drawing() as figure_class:
        most = 2 if count in (2, 4) else 3
        figure, axes = _panels(figure_class, count, 6.4 / most, 2.1, most, sharex=True)
        for axis, name in zip(axes, names, strict=False):
            _lines(axis, groups, [loss_curve(g, name) for g in groups], f"loss: {short(name, 20)}")
            _log_if_wide(axis)
        speed = axes[len(names)]
        _lines(speed, groups, [speed_curve(g) for g in groups], "training images/s")
        speed.set_ylim(bottom=0)
        for axis in axes[:count]:
            axis.tick_params(labelbottom=True)
            for start in task_starts(groups)[1:]:
                axis.axvline(start + 0.5, color=GRID, lw=0.8, zorder=0)
        _legend(figure, speed, dashed=False)
    return figure


def _lines(axis: Any, groups: Sequence[Group], curves: list[np.ndarray], title: str) -> None:
    for index, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        rounds = np.arange(1, len(curve) + 1)
        every = max(1, len(curve) // 5)
        axis.plot(
            rounds,
            curve,
            lw=1.4,
            ms=3.5,
            markevery=(every // 2, every),
            label=short(group.label),
            **look(index),
        )
    axis.set_title(title)
    axis.set_xlabel("round")


def _log_if_wide(axis: Any) -> None:
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() / values.min() > LOG_SCALE_FROM:
        axis.set_yscale("log")
    elif len(values) and values.min() >= 0:
        axis.set_ylim(bottom=0)
