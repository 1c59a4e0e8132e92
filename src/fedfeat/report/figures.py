"""The picture that a comparison leaves beside its tables, for a paper or a README: accuracy after each task."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.core.errors import FedfeatError
from fedfeat.report.collect import Group, group_runs
from fedfeat.report.run import Run
from fedfeat.report.series import accuracy_curve
from fedfeat.report.style import INK, PAGE, drawing, look, save_png, short

WIDTH = 7.2
MAX_TICKS = 12
DASHES = (0, (4, 2))


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
