"""A scenario as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedfeat.scenario.record import names_in_order, spread
from fedfeat.scenario.scenario import Scenario

MAX_CLIENT_ROWS = 20
TASKS_PER_TABLE = 5


def print_scenario(
    scenario: Scenario, class_names: Sequence[str] | None = None, console: Console | None = None
) -> None:
    """Print the scenario: its tasks, then who holds how much of each."""
    (console or Console()).print(scenario_text(scenario, class_names))


def scenario_text(scenario: Scenario, class_names: Sequence[str] | None = None) -> RenderableType:
    """Return the scenario as something rich can print; many clients are summed up instead of listed."""
    parts: list[RenderableType] = [Text(headline(scenario), style="bold"), _task_table(scenario)]
    parts.append(_class_table(scenario, names_in_order(scenario, class_names)))
    if scenario.num_clients > MAX_CLIENT_ROWS:
        parts.append(_spread_table(scenario))
    else:
        starts = range(0, scenario.num_tasks, TASKS_PER_TABLE)
        parts += [_client_table(scenario, range(s, min(s + TASKS_PER_TABLE, scenario.num_tasks))) for s in starts]
    return Group(*parts)


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
    return (
        f"{scenario.num_classes} classes in {scenario.num_tasks} tasks over {scenario.num_clients} clients: "
        f"{kind}; class order {order}; seed {scenario.seed}"
    )


def _task_table(scenario: Scenario) -> Table:
    table = _table("Tasks", "task", "classes", "samples", "clients", "per round", "exemplars per client")
    for task, classes in enumerate(scenario.task_classes):
        here = scenario.present(task)
        quotas = spread(scenario.quotas(task)[here])
        table.add_row(
            str(task + 1),
            str(len(classes)),
            f"{len(scenario.splits[task].indices):,}",
            f"{len(here):,}",
            f"{scenario.participants_per_round(task):,}",
            _range(int(quotas["min"]), int(quotas["max"])),
        )
    return table


def _class_table(scenario: Scenario, names: list[str]) -> Table:
    table = _table("Classes", "task")
    table.add_column("classes", overflow="fold")
    for task, classes in enumerate(scenario.task_classes):
        table.add_row(str(task + 1), Text(", ".join(names[c] for c in classes)))  # names may hold [markup]
    return table


def _client_table(scenario: Scenario, tasks: range) -> Table:
    """One row per client: samples, and how many classes they come from."""
    table = _table("Samples (classes held)", "client", *(f"task {t + 1}" for t in tasks), "total")
    counts = [scenario.counts(task) for task in tasks]
    joined = scenario.settings.first_tasks()
    totals = np.sum([split.sizes for split in scenario.splits], axis=0)
    for client in range(scenario.num_clients):
        cells = [
            f"{held[client].sum()} ({np.count_nonzero(held[client])})" if joined[client] <= task else "-"
            for task, held in zip(tasks, counts, strict=True)
        ]
        table.add_row(str(client), *cells, str(totals[client]))
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
