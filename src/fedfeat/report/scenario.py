"""A scenario for people: text for the terminal, and a heat map per task with clients down and classes across."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedfeat.report.figures import drawing, short
from fedfeat.scenario.partition import Ids
from fedfeat.scenario.scenario import Scenario, names_in_order, spread, task_domains

MAX_CLIENT_ROWS = 20
TASKS_PER_TABLE = 5
MAX_COLUMNS = 5
MAX_NUMBERED_CLIENTS = 12
MAX_NUMBERED_CLASSES = 10
MAX_RULED_CLIENTS = 40
MAX_SLANTED_NAMES = 10
MAX_NAMED_CLASSES = 20
MAX_NAME_LENGTH = 14
EMPTY = "#efefef"


def print_scenario(
    scenario: Scenario,
    class_names: Sequence[str] | None = None,
    console: Console | None = None,
    domain_names: Sequence[str] = (),
) -> None:
    """Print the scenario: its tasks, then who holds how much of each; many clients are summed up instead of listed."""
    parts: list[RenderableType] = [Text(headline(scenario), style="bold"), _task_table(scenario)]
    parts.append(_class_table(scenario, names_in_order(scenario, class_names), task_domains(scenario, domain_names)))
    if scenario.num_clients > MAX_CLIENT_ROWS:
        parts.append(_spread_table(scenario))
    else:
        starts = range(0, scenario.num_tasks, TASKS_PER_TABLE)
        parts += [_client_table(scenario, range(s, min(s + TASKS_PER_TABLE, scenario.num_tasks))) for s in starts]
    (console or Console()).print(Group(*parts))


def headline(scenario: Scenario) -> str:
    """Return the scenario in one line."""
    settings = scenario.settings
    kind = {
        "dirichlet": f"Dirichlet with a size cap, beta {settings.beta:g}",
        "plain_dirichlet": f"plain Dirichlet, beta {settings.beta:g}",
        "iid": "IID",
        "shards": f"{settings.shards_per_client} shards per client",
    }[settings.partition]
    order = settings.class_order if isinstance(settings.class_order, str) else "given"
    tasks = "domains, one per task," if settings.brings == "domains" else "tasks"
    blurry = f"; {100 * settings.blurry:g} % of a class's images come late" if settings.blurry else ""
    return (
        f"{scenario.num_classes} classes in {scenario.num_tasks} {tasks} over {scenario.num_clients} clients: "
        f"{kind}; class order {order}{blurry}; seed {scenario.seed}"
    )


def _task_table(scenario: Scenario) -> Table:
    mixed = any(len(scenario.held_classes(t)) > len(own) for t, own in enumerate(scenario.task_classes))
    columns = ("clients", "per round", "exemplars per client")
    table = _table("Tasks", "task", "classes", "samples", *(("of others",) if mixed else ()), *columns)
    for task, classes in enumerate(scenario.task_classes):
        here, counts = scenario.present(task), scenario.counts(task).sum(axis=0)
        quotas = spread(scenario.quotas(task)[here])
        table.add_row(
            str(task + 1),
            str(len(classes)),
            f"{counts.sum():,}",
            *((f"{counts.sum() - counts[classes.start : classes.stop].sum():,}",) if mixed else ()),
            f"{len(here):,}",
            f"{scenario.participants_per_round(task):,}",
            _range(int(quotas["min"]), int(quotas["max"])),
        )
    return table


def _class_table(scenario: Scenario, names: list[str], domains: list[str]) -> Table:
    table = _table("Classes", "task", *(["domain"] if domains else []))
    table.add_column("classes", overflow="fold")
    for task, classes in enumerate(scenario.task_classes):
        told = [*domains[task : task + 1], ", ".join(names[c] for c in classes)]
        table.add_row(str(task + 1), *map(Text, told))  # names may hold [markup]
    return table


def _client_table(scenario: Scenario, tasks: range) -> Table:
    """One row per client: samples, and how many classes they come from."""
    table = _table("Samples (classes held)", "client", *(f"task {t + 1}" for t in tasks), "total")
    counts = [scenario.counts(task) for task in tasks]
    here = [set(scenario.present(task).tolist()) for task in tasks]
    totals = np.sum([split.sizes for split in scenario.splits], axis=0)
    for client in range(scenario.num_clients):
        cells = [
            f"{held[client].sum()} ({np.count_nonzero(held[client])})" if client in present else "-"
            for present, held in zip(here, counts, strict=True)
        ]
        behind = f" ({lag} behind)" if (lag := scenario.lags[client]) else ""
        table.add_row(f"{client}{behind}", *cells, str(totals[client]))
    table.add_section()
    table.add_row("sum", *(str(held.sum()) for held in counts), str(totals.sum()))
    return table


def _spread_table(scenario: Scenario) -> Table:
    """One row per task: smallest, middle and largest client."""
    title = "Clients present: min / median / max"
    table = _table(title, "task", "samples per client", "classes per client", "clients without samples")
    for task in range(scenario.num_tasks):
        counts = scenario.counts(task)[scenario.present(task)]
        sizes, held = counts.sum(axis=1), np.count_nonzero(counts, axis=1)
        cells = [" / ".join(f"{value:,g}" for value in spread(values).values()) for values in (sizes, held)]
        table.add_row(str(task + 1), *cells, f"{np.count_nonzero(sizes == 0):,}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="italic", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def draw_scenario(
    scenario: Scenario, path: Path, class_names: Sequence[str] | None = None, domain_names: Sequence[str] = ()
) -> None:
    """Write the heat maps as a PNG file."""
    with drawing({}) as figure_class:
        names, domains = names_in_order(scenario, class_names), task_domains(scenario, domain_names)
        figure = _figure(figure_class, scenario, names, domains)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, format="png", facecolor="white")


def _figure(figure_class: Any, scenario: Scenario, names: Sequence[str], domains: Sequence[str]) -> Any:
    columns = min(MAX_COLUMNS, scenario.num_tasks)
    rows = ceil(scenario.num_tasks / columns)
    width, height = _panel_size(scenario)
    figure = figure_class(figsize=(max(1.3 + columns * width, 7.5), 0.9 + rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    held = [scenario.held_classes(task) for task in range(scenario.num_tasks)]
    counts = [scenario.counts(task)[:, classes] for task, classes in enumerate(held)]
    top = max(2, *(int(c.max()) for c in counts))
    images = [_panel(axes[task], scenario, task, counts[task], top) for task in range(scenario.num_tasks)]
    for task, classes in enumerate(held):
        _name_classes(axes[task], [names[c] for c in classes])
        domain = f": {short(domains[task], MAX_NAME_LENGTH)}" if domains else ""
        axes[task].set_title(f"task {task + 1}{domain}   {counts[task].sum():,} samples", fontsize=9, loc="left")
    for unused in axes[scenario.num_tasks :]:
        unused.set_axis_off()
    for axis in axes[::columns]:
        axis.set_ylabel("client", fontsize=9)
    _colour_bar(figure, images[0], list(axes), top)
    figure.suptitle(headline(scenario) + _legend(scenario), fontsize=9, x=0.01, ha="left")
    return figure


def _panel_size(scenario: Scenario) -> tuple[float, float]:
    """Inches of one task's panel: room for numbers with few clients, bounded with many."""
    widest = max(len(scenario.held_classes(task)) for task in range(scenario.num_tasks))
    width = float(np.clip(0.55 * widest, 1.7, 3.4))
    height = float(np.clip(0.34 * scenario.num_clients, 1.2, 6.0))
    return width, height + 1.0


def _panel(axis: Any, scenario: Scenario, task: int, counts: Ids, top: int) -> Any:
    from matplotlib.colors import PowerNorm

    # A square-root scale keeps a handful of samples apart from none, and large numbers apart from each other.
    image = axis.imshow(
        np.ma.masked_equal(counts, 0),
        cmap="viridis_r",
        norm=PowerNorm(0.5, vmin=1, vmax=top),
        aspect="auto",
        interpolation="nearest",
    )
    axis.set_facecolor(EMPTY)
    axis.set_yticks(range(0, len(counts), max(1, ceil(len(counts) / 20))))
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    if len(counts) <= MAX_RULED_CLIENTS:
        _rule_cells(axis, counts.shape)
    if counts.shape[1] > (own := len(scenario.task_classes[task])):
        axis.axvline(own - 0.5, color="black", linewidth=1.2)
    _hatch_absent(axis, scenario, task)
    if len(counts) <= MAX_NUMBERED_CLIENTS and counts.shape[1] <= MAX_NUMBERED_CLASSES:
        _write_numbers(axis, counts, top)
    return image


def _rule_cells(axis: Any, shape: tuple[int, ...]) -> None:
    axis.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    axis.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1)
    axis.tick_params(which="minor", length=0)


def _hatch_absent(axis: Any, scenario: Scenario, task: int) -> None:
    absent = np.setdiff1d(np.arange(scenario.num_clients), scenario.present(task))
    for run in np.split(absent, np.flatnonzero(np.diff(absent) > 1) + 1):
        if len(run):
            low, high = run[0] - 0.5, run[-1] + 0.5
            axis.axhspan(low, high, facecolor="white", edgecolor="#bbbbbb", hatch="////", lw=0, zorder=3)


def _write_numbers(axis: Any, counts: Ids, top: int) -> None:
    for (client, column), value in np.ndenumerate(counts):
        if value:
            colour = "white" if value > 0.2 * top else "black"
            axis.text(column, client, f"{value}", ha="center", va="center", fontsize=8, color=colour)


def _name_classes(axis: Any, names: list[str]) -> None:
    if len(names) > MAX_NAMED_CLASSES:
        axis.set_xticks([])
        axis.set_xlabel(f"{len(names)} classes", fontsize=8)
        return
    labels = [short(name, MAX_NAME_LENGTH) for name in names]
    if len(names) <= MAX_SLANTED_NAMES:
        axis.set_xticks(range(len(names)), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    else:
        axis.set_xticks(range(len(names)), labels, rotation=90, fontsize=6)


def _legend(scenario: Scenario) -> str:
    absent = any(len(scenario.present(task)) < scenario.num_clients for task in range(scenario.num_tasks))
    away = "not joined yet, or gone" if scenario.settings.leaves else "not joined yet"
    mixed = any(len(scenario.held_classes(t)) > len(own) for t, own in enumerate(scenario.task_classes))
    told = ["grey: no samples", *([f"hatched: {away}"] if absent else [])]
    return "\n" + "; ".join([*told, *(["right of the line: classes of earlier tasks"] if mixed else [])])


def _colour_bar(figure: Any, image: Any, axes: list[Any], top: int) -> None:
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=30, fraction=0.03)
    steps = [top * share**2 for share in (0.25, 0.5, 0.75)]
    ticks = sorted({1, top, *(int(float(f"{step:.2g}")) for step in steps if step >= 1)})
    bar.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    bar.set_label("samples", fontsize=8)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
