"""The scenario from ``scenario.json``: one heat map per task, clients down, the task's classes across."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from fedfeat.report.records import ScenarioRecord, ScenarioTaskRecord
from fedfeat.report.style import EMPTY, PAGE, drawing, short

MAX_COLUMNS = 5
MAX_NAMED_CLASSES = 10
MAX_SLANTED_NAMES = 6
MAX_WRITTEN = 12
MAX_RULED = 40


def draw_counts(scenario: ScenarioRecord) -> Any:
    """Draw samples per task, client and class; white gaps are clients that have not joined."""
    columns = min(MAX_COLUMNS, len(scenario.tasks))
    rows = ceil(len(scenario.tasks) / columns)
    height = float(np.clip(0.24 * scenario.num_clients, 1.0, 4.0)) + 0.75
    top = max((max(c.counts) for t in scenario.tasks for c in t.clients if c.counts), default=1)
    with drawing() as figure_class:
        figure = figure_class(figsize=(max(4.4, 1.5 * columns), rows * height + 0.3), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).ravel())
        for axis, task in zip(axes, scenario.tasks, strict=False):
            image = _panel(axis, task, scenario.num_clients, max(2, top))
        for unused in axes[len(scenario.tasks) :]:
            unused.set_axis_off()
        for axis in axes[::columns]:
            axis.set_ylabel("client")
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=30, fraction=0.025)
        bar.set_label("samples")
        bar.outline.set_visible(False)
    return figure


def _panel(axis: Any, task: ScenarioTaskRecord, clients: int, top: int) -> Any:
    from matplotlib.colors import PowerNorm

    counts = np.full((clients, len(task.classes)), np.nan)
    for record in task.clients:
        counts[record.client] = record.counts
    # A square-root scale keeps a handful of samples apart from none, and large numbers apart from each other.
    scale = {"cmap": "viridis_r", "norm": PowerNorm(0.5, vmin=1, vmax=top)}
    shown = np.ma.masked_where(~(counts > 0), counts)
    if clients <= MAX_RULED:
        axis.pcolormesh(np.ma.masked_where(counts != 0, counts), cmap=_flat(EMPTY), ec=PAGE, lw=0.8)
        image = axis.pcolormesh(shown, ec=PAGE, lw=0.8, **scale)
    else:  # one picture instead of thousands of shapes
        for client in np.flatnonzero(~np.isnan(counts[:, 0])) if len(task.classes) else ():
            axis.axhspan(client, client + 1, color=EMPTY, lw=0, zorder=-1)
        extent = (0, len(task.classes), clients, 0)
        image = axis.imshow(shown, extent=extent, aspect="auto", interpolation="none", **scale)
    axis.set_title(f"task {task.task}")
    axis.set_ylim(clients, 0)  # panels share the axis, so it is set, not turned over
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    step = ceil(clients / 12)
    axis.set_yticks(np.arange(0, clients, step) + 0.5, [str(k) for k in range(0, clients, step)])
    _name_classes(axis, task.classes)
    if clients <= MAX_WRITTEN and len(task.classes) <= 4:
        _write_counts(axis, counts, top)
    return image


def _flat(colour: str) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap([colour])


def _name_classes(axis: Any, names: list[str]) -> None:
    slanted = max(map(len, names), default=0) > 2
    if len(names) > (MAX_SLANTED_NAMES if slanted else MAX_NAMED_CLASSES):
        axis.set_xticks([])
        axis.set_xlabel(f"{len(names)} classes")
        return
    turn = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axis.set_xticks(np.arange(len(names)) + 0.5, [short(name, 14) for name in names], **turn)


def _write_counts(axis: Any, counts: np.ndarray, top: int) -> None:
    for (client, column), value in np.ndenumerate(counts):
        if value > 0:
            colour = "white" if value > 0.2 * top else "black"
            axis.text(
                column + 0.5,
                client + 0.5,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=7.5,
                color=colour,
            )
