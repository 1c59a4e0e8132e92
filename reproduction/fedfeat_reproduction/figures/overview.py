"""Pictures of the reproduction page: all cells of the main table, and accuracy against traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfeat.config.presets import DATASETS
from fedfeat.config.recipes import RECIPES
from fedfeat_reproduction import recommended
from fedfeat_reproduction.figures import style
from fedfeat_reproduction.overview import (
    FEAT_F,
    CellFigures,
    TrafficPoint,
    figures_by_cell,
    traffic_points,
)
from fedfeat_reproduction.results import RecordIndex, SeedMean

RECIPE_LOOK: Mapping[str, Any] = {
    "color": "#00795c",
    "marker": "D",
    "mec": "#00795c",
    "mfc": "#00795c",
    "mew": 1.0,
    "ms": 3.4,
}
TICKS = (5, 10, 20, 50, 100)  # gigabytes
LEAST_SPAN = 10.0  # points of accuracy that a panel shows
RECIPE_NAME = f"our recipe ({recommended.NAME})"
ROUNDS = RECIPES[recommended.NAME].settings["train"]["rounds"]


def draw_overview(index: RecordIndex, folder: Path) -> list[Path]:
    """Draw the pictures of which there is something to show."""
    cells, points = figures_by_cell(index), traffic_points(index)
    written = style.save_figure(draw_cells(cells), folder / "main-table", ("svg",))
    if points:
        written += style.save_figure(draw_traffic(points), folder / "traffic", ("svg",))
    return written


def draw_cells(cells: Sequence[CellFigures]) -> Any:
    """Draw a row per data set, tasks and skew, a panel per number of clients; a cell that was not run stays empty."""
    from matplotlib.lines import Line2D

    rows = list(dict.fromkeys((c.cell.data, c.cell.tasks, c.cell.beta) for c in cells))
    with style.paper_style() as figure_class:
        figure = figure_class(figsize=(style.PAGE, 3.6), layout="constrained")
        clients = list(dict.fromkeys(c.cell.clients for c in cells))
        axes = figure.subplots(1, len(clients), sharey=True, squeeze=False)[0]
        for axis, number in zip(axes, clients, strict=True):
            for found in cells:
                if found.cell.clients == number:
                    _draw_cell(axis, rows.index((found.cell.data, found.cell.tasks, found.cell.beta)), found)
            axis.set(xlim=(0, 95), xlabel="accuracy (%)", ylim=(len(rows) - 0.4, -0.6))
            axis.set_title(f"{number} clients")
            axis.grid(visible=False, axis="y")
            axis.grid(visible=True, axis="x")
        names = [rf"{DATASETS[data]}, {tasks} tasks, $\beta$ = {beta:g}" for data, tasks, beta in rows]
        axes[0].set_yticks(range(len(rows)), names)
        handles = [
            Line2D([], [], ls="none", label=r"FEAT$_{\mathrm{F}}$ published", **_published_look()),
            Line2D([], [], ls="none", label=r"FEAT$_{\mathrm{F}}$, ours", **_ours_look()),
            Line2D([], [], ls="none", label=f"{RECIPE_NAME}, {ROUNDS} rounds", **RECIPE_LOOK),
        ]
        if any(figure and figure.earlier for found in cells for figure in (found.ours, found.recipe)):
            handles.append(Line2D([], [], ls="none", label="hollow: earlier settings", **_hollow(RECIPE_LOOK)))
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _draw_cell(axis: Any, row: int, found: CellFigures) -> None:
    if found.ours is None and found.recipe is None:
        axis.axhspan(row - 0.42, row + 0.42, facecolor="#f4f4f4", lw=0, zorder=0)
        axis.text(1, row, "not run", va="center", fontsize=6.5, color=style.MUTED)
    std = found.published.std or 0.0
    axis.errorbar(found.published.mean, row - 0.18, xerr=std, ls="none", ecolor=style.MUTED, elinewidth=0.8)
    axis.plot(found.published.mean, row - 0.18, ls="none", **_published_look())
    for figure, at, look in ((found.ours, row + 0.02, _ours_look()), (found.recipe, row + 0.24, RECIPE_LOOK)):
        if figure is not None:
            axis.errorbar(figure.mean, at, xerr=figure.std or 0.0, ls="none", ecolor=look["color"], elinewidth=0.8)
            axis.plot(figure.mean, at, ls="none", **(_hollow(look) if figure.earlier else look))


def _hollow(look: Mapping[str, Any]) -> dict[str, Any]:
    return {**look, "mfc": style.PAPER}


def _published_look() -> dict[str, Any]:
    return {"color": style.INK, "marker": "o", "mfc": style.PAPER, "mec": style.INK, "mew": 0.9, "ms": 3.8}


def _ours_look() -> dict[str, Any]:
    return {key: value for key, value in style.method_look(FEAT_F).items() if key not in ("ls", "zorder")} | {"ms": 3.8}


def draw_traffic(points: Sequence[TrafficPoint]) -> Any:
    """Draw a panel per cell: accuracy over what a client sent and received, a line per method, rounds beside points."""
    cells = list(dict.fromkeys(p.cell for p in points))
    columns = min(len(cells), 3)
    lines = -(-len(cells) // columns)
    with style.paper_style() as figure_class:
        figure = figure_class(figsize=(style.PAGE, 0.5 + 2.0 * lines), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).flatten()
        for axis, cell in zip(axes, cells, strict=False):
            _draw_panel(axis, [p for p in points if p.cell == cell])
            axis.set_title(f"{DATASETS[cell.data]}, {cell.tasks} tasks")
        for axis in axes[len(cells) :]:
            axis.set_axis_off()
        axes[0].set_ylabel("accuracy (%)")
        figure.supxlabel("gigabytes that a client sends and receives, all tasks", fontsize=8)
        handles: dict[str, Any] = {}
        for axis in axes[: len(cells)]:
            handles |= {line.get_label(): line for line in axis.get_legend_handles_labels()[0]}
        figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=3)
    return figure


def _draw_panel(axis: Any, points: Sequence[TrafficPoint]) -> None:
    for kind in dict.fromkeys((p.method, p.images, p.accuracy.earlier) for p in points):
        line = [p for p in points if (p.method, p.images, p.accuracy.earlier) == kind]
        method, _, earlier = kind
        ours = method == recommended.METHOD
        look = {**(_hollow(RECIPE_LOOK) if earlier else RECIPE_LOOK), "ls": "-"} if ours else style.method_look(method)
        at = [p.bytes_per_client / 1e9 for p in line]
        axis.plot(at, [p.accuracy.mean for p in line], label=RECIPE_NAME if ours else style.method_name(method), **look)
        for place, point in zip(at, line, strict=True):
            _spread(axis, place, point.accuracy, look["color"])
            axis.annotate(
                str(point.rounds),
                (place, point.accuracy.mean),
                xytext=(4, -1),
                textcoords="offset points",
                va="top",
                fontsize=6,
                color=look["color"],
            )
    axis.set_xscale("log")
    axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axis.set_xlim(4, 130)
    axis.minorticks_off()
    axis.margins(y=0.2)
    low, high = axis.get_ylim()
    missing = max(LEAST_SPAN - (high - low), 0.0) / 2
    axis.set_ylim(low - missing, high + missing)
    axis.grid(visible=True, axis="both", color=style.GRID)


def _spread(axis: Any, place: float, figure: SeedMean, colour: str) -> None:
    if figure.std:
        axis.errorbar(place, figure.mean, yerr=figure.std, ls="none", ecolor=colour, elinewidth=0.8)
