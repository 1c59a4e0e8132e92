"""The headline of a report: what was run, what came out and what the correction changed, in plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from fedfeat.report.collect import Group, SummaryRow
from fedfeat.report.run import Run

MAX_NAMED_SEEDS = 10
MAX_NAMED_ROWS = 5
MAX_CORRECTED_ROWS = 3
MINUS = "\u2212"


def headline(rows: Sequence[SummaryRow]) -> list[str]:
    """Return the sentences that a reader in a hurry needs."""
    if not rows:
        return []
    done = [row for row in rows if row.final_accuracy is not None]
    if not done:
        return [_setup(rows), "No run has finished yet, so there is no result to report."]
    return [_setup(rows), *_outcome(done), *_corrections(done)]


def count(number: int, noun: str) -> str:
    """Return ``1 task``, ``2 tasks``; nouns in -s stay as they are."""
    return f"{number} {noun}" if number == 1 or noun.endswith("s") else f"{number} {noun}s"


def listed(items: Sequence[object]) -> str:
    """Return ``a, b and c``."""
    names = [str(item) for item in items]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def named(rows: Sequence[SummaryRow], join: Callable[[list[str]], str]) -> str:
    """Return the labels of some rows, or their number where a list would be long."""
    return join([row.label for row in rows]) if len(rows) <= MAX_NAMED_ROWS else f"{len(rows)} methods"


def _setup(rows: Sequence[SummaryRow]) -> str:
    datasets = listed(sorted({row.dataset for row in rows}))
    methods = named(rows, listed)
    verb = "was" if len(rows) == 1 else "were"
    done = "run" if any(row.seeds for row in rows) else "begun"
    return f"{methods} {verb} {done} on {datasets}{_shape(rows)}{_seeds(rows)}."


def _shape(rows: Sequence[SummaryRow]) -> str:
    scenarios = [run.scenario for row in rows for run in row.group.runs if run.scenario]
    shapes = {(len(s.tasks), sum(len(t.classes) for t in s.tasks), s.num_clients) for s in scenarios}
    if len(shapes) != 1:
        return ""
    tasks, classes, clients = shapes.pop()
    more = "es" if classes > 1 else ""
    return f", {classes} class{more} in {count(tasks, 'task')}, spread over {count(clients, 'client')}"


def _seeds(rows: Sequence[SummaryRow]) -> str:
    sets = {row.seeds for row in rows if row.seeds}
    if len(sets) != 1:
        return ", with different seeds" if sets else ""
    seeds = sets.pop()
    if len(seeds) > MAX_NAMED_SEEDS:
        return f", with {len(seeds)} seeds each"
    return f", with seed {seeds[0]}" if len(seeds) == 1 else f", with seeds {listed(seeds)}"


def _outcome(rows: list[SummaryRow]) -> list[str]:
    """Compare the best two; with more than one data set or scenario a ranking would mean nothing."""
    best = rows[0]
    assert best.final_accuracy is not None
    reached = f"{best.label} recognises {best.final_accuracy.text(1)} % of the test images of all classes"
    if len(rows) == 1:
        return [f"After the last task {reached}."]
    if not _comparable(rows):
        return ["The runs differ in data set or scenario, so the rows of the table are not a ranking."]
    second = rows[1]
    gaps = _paired_gaps(best.group, second.group)
    if not gaps:
        return [f"After the last task {reached}, the highest of the {len(rows)}."]
    return [f"After the last task {reached}, the highest; {second.label} follows {_points(gaps)} behind."]


def _comparable(rows: list[SummaryRow]) -> bool:
    configs = [row.group.runs[0].config for row in rows]
    first = configs[0]
    return bool(first) and all(c.get(k) == first.get(k) for c in configs for k in ("data", "scenario"))


def _paired_gaps(one: Group, other: Group) -> list[float]:
    """Return differences in final accuracy for the seeds that both have: the same seed is the same split."""
    mine, theirs = ({r.seed: r.result.final_accuracy for r in g.shown if r.result} for g in (one, other))
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def _corrections(rows: list[SummaryRow]) -> list[str]:
    gains = {
        row.label: [_gain(run) for run in row.group.shown if run.result] for row in rows if row.group.has_correction
    }
    if not gains:
        return ["None of these methods corrects its predictions."]
    if len(gains) > MAX_CORRECTED_ROWS:
        low, high = (f"{v:+.1f}".replace("-", MINUS) for v in (f(map(fmean, gains.values())) for f in (min, max)))
        return [f"The correction changes the final accuracy of {len(gains)} methods, by {low} to {high} points."]
    return [_correction(label, values) for label, values in gains.items()]


def _correction(label: str, gains: list[float]) -> str:
    if not any(gains):
        return f"The correction does not change the final accuracy of {label}."
    return f"The correction changes the final accuracy of {label} by {_points(gains, sign='+')}."


def _gain(run: Run) -> float:
    assert run.result is not None
    return run.result.final_accuracy - run.result.final_accuracy_uncorrected


def _points(values: list[float], sign: str = "-") -> str:
    """Return ``+3.1 points (between -0.2 and +5.8 over 3 seeds)``."""
    numbers = fmean(values), min(values), max(values)
    mean, low, high = (f"{v:{sign}.1f}".replace("-", MINUS) for v in numbers)
    if len(values) < 2:
        return f"{mean} points"
    return f"{mean} points on average ({low} to {high} over {len(values)} seeds)"
