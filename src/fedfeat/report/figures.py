"""The picture that a comparison leaves beside its tables: accuracy after each task, and the style of every figure."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.core.errors import FedfeatError, required
from fedfeat.core.files import write_atomically
from fedfeat.report.collect import Group, group_runs
from fedfeat.report.run import Run
from fedfeat.report.series import accuracy_curve

# One palette that colour-blind eyes and printers keep apart.
INK, MUTED, GRID, PAGE = "#1b1f24", "#5b636e", "#d9dde2", "#fefefe"
SERIES = ("#0072b2", "#d55e00", "#00875f", "#a8327e", "#8a6a00", "#3a9bd9", "#5a4fcf", "#707070")
MARKERS = "osD^vPX*"
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
WIDTH = 7.2
MAX_TICKS = 12
DASHES = (0, (4, 2))


def curves_png(runs: Sequence[Run], path: Path) -> None:
    """Write the accuracy after each task, one line per method, as a PNG file."""
    groups = [g for g in group_runs(runs) if any(run.accuracies() for run in g.shown)]
    if not groups:
        raise FedfeatError(f"{path}: nothing to draw, for no run has finished a task")
    save_png(accuracy_curves(groups), path)


def accuracy_curves(groups: Sequence[Group]) -> Any:
    """Draw accuracy after each task: mean and deviation over seeds, thin dashes without the correction."""
    with drawing() as figure_class:
        figure = figure_class(figsize=(WIDTH, 4.0), layout="constrained")
        axis = figure.subplots()
        for index, group in enumerate(groups):
            mean, std = accuracy_curve(group, True)
            tasks = np.arange(1, len(mean) + 1)
            label = short(group.label) + ("" if group.finished else " (unfinished)")
            style = line_style(index)
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


def _task_axis(axis: Any, groups: Sequence[Group]) -> None:
    last = max(len(run.accuracies()) for g in groups for run in g.shown)
    axis.set_xlabel("tasks learned")
    axis.set_xticks(range(1, last + 1, ceil(last / MAX_TICKS)))
    axis.set_xlim(0.85, max(last, 2) + 0.15)


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


@contextmanager
def drawing(settings: Any = _SETTINGS) -> Iterator[Any]:
    """Lend ``matplotlib.figure.Figure`` under a style, a report's unless told; the caller's own settings come back."""
    matplotlib = required("matplotlib", "plots", "drawing figures")
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield required("matplotlib.figure", "plots", "drawing figures").Figure


def line_style(index: int) -> dict[str, Any]:
    """Return colour and marker of the n-th method, the same in every figure of a report."""
    lap, colour = divmod(index, len(SERIES))
    return {"color": SERIES[colour], "marker": MARKERS[(index + 3 * lap) % len(MARKERS)]}


def short(text: str, length: int = 34) -> str:
    """Return a name for a figure: cut when long, and never read as a formula."""
    clean = " ".join(text.split()).lstrip("_") or "?"
    return (clean if len(clean) <= length else clean[: length - 1] + "…").replace("$", r"\$")


def save_png(figure: Any, path: Path) -> None:
    """Write a figure as PNG on white, whole or not at all."""
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format="png", dpi=200, facecolor="white")
    write_atomically(path, buffer.getvalue())
