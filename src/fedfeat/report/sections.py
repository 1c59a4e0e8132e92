"""The sections of the page; each function returns HTML, or nothing where the runs have nothing to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedfeat.errors import MissingExtra
from fedfeat.report import figures, html
from fedfeat.report.collect import MEGABYTE, Group, Spread, SummaryRow, problems, setting
from fedfeat.report.records import ScenarioTaskRecord
from fedfeat.report.run import Run
from fedfeat.report.scenario_figure import draw_counts
from fedfeat.report.series import accuracy_curve
from fedfeat.report.style import to_svg
from fedfeat.report.tables import COLUMNS, NOTHING, cell, seeds_text
from fedfeat.report.words import MINUS

SHOWN_MEGABYTES = 0.001


def comparison(rows: Sequence[SummaryRow]) -> str:
    """Return the table of methods with a key to its columns."""
    header = ["method", "seeds", *(f"{c.heading} ({c.unit})" if c.unit else c.heading for c in COLUMNS)]
    lines = [[r.label, seeds_text(r), *(cell(r, c).replace("-", MINUS) for c in COLUMNS)] for r in rows]
    best = 0 if len(rows) > 1 and rows[0].final_accuracy else None
    key = html.details("What the columns mean", html.bullets(f"{c.heading}: {c.meaning}." for c in COLUMNS))
    caption = "Mean ± standard deviation over seeds, best first"
    table = html.table(caption, header, lines, strong=best)
    return html.section("comparison", "Comparison", table, key, _variants([r.group for r in rows]))


def _variants(groups: Sequence[Group]) -> str:
    """Return other predictions of the same models, such as EGC before its strength was calibrated."""
    lines = []
    for group in groups:
        results = [run.result for run in group.shown if run.result]
        for name in dict.fromkeys(n for r in results for n in r.accuracy_of_variants):
            spread = Spread.of([r.accuracy_of_variants[name][-1] for r in results if r.accuracy_of_variants.get(name)])
            lines.append([group.label, name, spread.text() if spread else NOTHING])
    header = ["method", "prediction", "final accuracy (%)"]
    return html.table("Other predictions of the same models", header, lines) if lines else ""


def curves(groups: Sequence[Group]) -> str:
    """Return accuracy and forgetting by task."""
    accuracy = _draw(
        lambda: figures.accuracy_curves(groups),
        "curves",
        "Line chart of accuracy after each task. " + "; ".join(_told(g) for g in groups) + ".",
        "Accuracy on all classes seen so far: mean over seeds, the band is one standard deviation. "
        "Thin dashes: the same models without the correction, where it changes anything.",
    )
    return html.section("curves", "Accuracy and forgetting", accuracy, _curve_numbers(groups), _forgetting(groups))


def _forgetting(groups: Sequence[Group]) -> str:
    done = [g for g in groups if any(run.result and len(run.matrix()) > 1 for run in g.shown)]
    if not done:
        return ""
    return _draw(
        lambda: figures.forgetting_bars(done),
        "forgetting",
        "Bar chart of the forgetting of each task but the last, per method.",
        "How far each old task ended below its best, with one standard deviation over seeds; "
        "below zero the task ended better than ever before.",
    )


def _told(group: Group) -> str:
    mean = accuracy_curve(group, True)[0]
    return f"{group.label}: from {mean[0]:.0f} % after the first to {mean[-1]:.0f} % after task {len(mean)}"


def _curve_numbers(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    longest = max(len(accuracy_curve(g, True)[0]) for g in groups)
    lines = []
    for group in groups:
        for corrected in (True, False) if group.has_correction else (True,):
            mean, std = accuracy_curve(group, corrected)
            name = group.label + ("" if corrected else ", without correction")
            several = len(group.shown) > 1
            cells = [f"{m:.1f} ± {s:.1f}" if several else f"{m:.1f}" for m, s in zip(mean, std, strict=True)]
            lines.append([name, *cells, *[NOTHING] * (longest - len(cells))])
    header = ["method", *(f"task {t + 1}" for t in range(longest))]
    table = html.table("Accuracy (%) after each task", header, lines)
    return html.details("The numbers of the curves", table)


def matrices(groups: Sequence[Group]) -> str:
    """Return one accuracy matrix per method."""
    return html.section(
        "matrices",
        "Accuracy matrices",
        _draw(
            lambda: figures.accuracy_matrices(groups),
            "matrices",
            "Heat maps, one per method: accuracy on each task after each task.",
            "Each row is a moment, after that many tasks; each column is the task tested. "
            "Down a column: what happens to a task once newer ones are learned. Mean over seeds.",
        ),
    )


def head_tail(groups: Sequence[Group]) -> str:
    """Return accuracy on the newest and on earlier classes."""
    told = [g for g in groups if any(len(run.tasks) > 1 for run in g.shown)]
    return html.section(
        "head-tail",
        "Newest and earlier classes",
        _draw(
            lambda: figures.head_tail(told),
            "headtail",
            "Line charts, one per method: accuracy on the newest and on all earlier classes after each task.",
            "Classes of the newest task have many training images (the head), earlier ones only exemplars "
            "(the tail). Solid: with the correction; thin dashes: without. Mean over seeds.",
        )
        if told
        else "",
    )


def rounds(groups: Sequence[Group]) -> str:
    """Return losses and speed over rounds."""
    told = any(run.rounds for g in groups for run in g.shown)
    return html.section(
        "rounds",
        "Losses and speed",
        _draw(
            lambda: figures.over_rounds(groups),
            "rounds",
            "Line charts over all rounds: each loss, and training images per second.",
            "Mean over clients and seeds; vertical lines mark the beginning of a task.",
        )
        if told
        else "",
    )


def communication(rows: Sequence[SummaryRow]) -> str:
    """Return what crossed between server and clients, by operation."""
    done = [row for row in rows if row.final_accuracy]
    parts = [_traffic(row.group) for row in done]
    kinds = sorted({kind for part in parts for kind in part})
    if not kinds:
        return ""
    lines = [[kind, *(_megabytes(p.get(kind)) for p in parts)] for kind in kinds]
    lines.append(["in all", *(_megabytes(sum(p.values())) for p in parts)])
    caption = "Megabytes in the whole run, as counted, mean over seeds"
    header = ["direction and operation", *(row.label for row in done)]
    return html.section("communication", "Communication", html.table(caption, header, lines))


def _megabytes(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.3f}" if value >= SHOWN_MEGABYTES else f"< {SHOWN_MEGABYTES}"


def _traffic(group: Group) -> dict[str, float]:
    """Return megabytes by direction and operation, averaged over seeds."""
    results = [run.result for run in group.shown if run.result]
    total: dict[str, float] = {}
    for result in results:
        for address, count in result.traffic.items():
            kind = " / ".join(address.split("/")[:2])
            total[kind] = total.get(kind, 0.0) + count / MEGABYTE / len(results)
    return total


def scenario(runs: Sequence[Run]) -> str:
    """Return who held what, of the first run that tells."""
    found = next((run.scenario for run in runs if run.scenario), None)
    if found is None:
        return ""
    picture = _draw(
        lambda: draw_counts(found),
        "scenario",
        "Heat maps, one per task: training samples of each class (across) at each client (down).",
        f"Training samples per task, client and class with seed {found.seed}. "
        "Grey: none; blank: not joined yet. The same seed gives every method the same split.",
    )
    listed = any(client.counts for task in found.tasks for client in task.clients)
    header = ["task", "classes", "samples", "clients", "in a round"]
    header += ["samples/client", "classes/client", "exemplars/client"]
    table = html.table("Per client: smallest / middle / largest", header, map(_task_line, found.tasks))
    return html.section("scenario", "Scenario", picture if listed else "", table)


def _task_line(task: ScenarioTaskRecord) -> list[object]:
    spreads = task.samples_per_client, task.classes_per_client, task.exemplars_per_client
    return [
        task.task,
        _some(task.classes),
        f"{task.samples:,}",
        task.present,
        task.participants_per_round,
        *(f"{s.min:g} / {s.median:g} / {s.max:g}" for s in spreads),
    ]


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def settings(groups: Sequence[Group]) -> str:
    """Return the settings shared by all, those that are not, and the versions."""
    flat = [setting(g.runs[0]) for g in groups]
    keys = [key for key in dict.fromkeys(key for f in flat for key in f) if key != "method"]
    shared = [[k, flat[0][k]] for k in keys if all(k in f and f[k] == flat[0][k] for f in flat)]
    alike = {line[0] for line in shared}
    apart = [[k, *(f.get(k, NOTHING) for f in flat)] for k in keys if k not in alike]
    return html.section(
        "setting",
        "Setting and versions",
        _notes(groups),
        _versions([run for g in groups for run in g.runs]),
        _folded("Settings of every run", ["setting", "value"], shared),
        _folded("Settings that not all methods share", ["setting", *(g.label for g in groups)], apart),
    )


def _notes(groups: Sequence[Group]) -> str:
    """Return what methods say about themselves, such as the text encoder they used."""
    said = {f"{g.label}: {note}" for g in groups for run in g.runs if run.result for note in run.result.notes}
    return html.bullets(sorted(said)) if said else ""


def _folded(title: str, header: Sequence[object], lines: Sequence[Sequence[object]]) -> str:
    return html.details(title, html.table(title, header, lines, words=True)) if lines else ""


def _versions(runs: Sequence[Run]) -> str:
    keys = list(dict.fromkeys(key for run in runs for key in run.environment))
    lines = [[k, ", ".join(_distinct([r.environment[k] for r in runs if k in r.environment]))] for k in keys]
    return html.table("Versions and hardware", ["what", "value"], lines, words=True) if lines else ""


def _distinct(values: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys("none" if v is None else str(v) for v in values))


def missing(runs: Sequence[Run], notes: Sequence[str]) -> str:
    """Return what could not be read or drawn, run by run."""
    found = [*notes, *(f"{path}: {sentence}." for path, sentence in problems(runs))]
    content = html.bullets(found) if found else html.paragraph("Nothing: every run folder is complete.")
    return html.section("missing", "What is missing", content)


def _draw(figure: Callable[[], Any], prefix: str, description: str, caption: str) -> str:
    """Draw and embed a figure; without matplotlib the page has tables alone."""
    try:
        return html.figure(to_svg(figure(), prefix), description, caption)
    except MissingExtra:
        return ""
