"""The headline of a report: what was run, what came out and what the correction changed, in plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from fedfeat.report.collect import Group
from fedfeat.report.run import Run

MAX_NAMED_SEEDS = 10
MAX_NAMED_ROWS = 5
MAX_CORRECTED_ROWS = 3
MINUS = "\u2212"


def headline(rows: Sequence[Group]) -> list[str]:
    """Return the sentences that a reader in a hurry needs."""
    if not rows:
        return []
    done = [row for row in rows if row.finished]
    if not done:
        return [_setup(rows), *_rules(rows), "No run has finished yet, so there is no result to report."]
    return [_setup(rows), *_rules(rows), *_outcome(done), *_corrections(done)]


def count(number: int, noun: str) -> str:
    """Return ``1 task``, ``2 tasks``; nouns in -s stay as they are."""
    return f"{number} {noun}" if number == 1 or noun.endswith("s") else f"{number} {noun}s"


def listed(items: Sequence[object]) -> str:
    """Return ``a, b and c``."""
    names = [str(item) for item in items]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def named(rows: Sequence[Group], join: Callable[[list[str]], str]) -> str:
    """Return the labels of some rows, or their number where a list would be long."""
    if len(rows) <= MAX_NAMED_ROWS:
        return join([row.label for row in rows])
    methods = list(dict.fromkeys(row.method for row in rows))
    if len(methods) > MAX_NAMED_ROWS or len(methods) == len(rows):
        return f"{len(rows)} methods"
    return f"{join(methods)} in {len(rows)} settings"


def _setup(rows: Sequence[Group]) -> str:
    datasets = listed(sorted({row.dataset for row in rows}))
    methods = named(rows, listed)
    verb = "was" if len({row.method for row in rows}) == 1 else "were"
    done = "run" if any(row.seeds for row in rows) else "begun"
    return f"{methods} {verb} {done} on {datasets}{_shape(rows)}{_seeds(rows)}."


def _shape(rows: Sequence[Group]) -> str:
    scenarios = [run.scenario for row in rows for run in row.runs if run.scenario]
    shapes = {(len(s.tasks), len({c for t in s.tasks for c in t.classes}), s.num_clients) for s in scenarios}
    if len(shapes) != 1:
        return ""
    tasks, classes, clients = shapes.pop()
    more = "es" if classes > 1 else ""
    return f", {classes} class{more} in {count(tasks, 'task')}, spread over {count(clients, 'client')}"


def _rules(rows: Sequence[Group]) -> list[str]:
    """Say how skewed, how many exemplars and how many rounds, as far as all runs have them in common."""
    configs = [row.runs[0].config for row in rows]

    def common(table: str, key: str) -> Any:
        found = [t.get(key) if isinstance(t := c.get(table), dict) else None for c in configs]
        return found[0] if all(value == found[0] for value in found) else None

    partition, beta, budget = (common("scenario", key) for key in ("partition", "beta", "budget"))
    skews = {"iid": "the partition is IID", "shards": "the partition is in shards by class"}
    skew = skews.get(partition) or (f"the partition is Dirichlet with beta {beta:g}" if partition and beta else None)
    own = common("scenario", "budget_scope") == "per_client_per_task"
    whose = "each client keeps" if own else "the clients together keep"
    rounds = common("train", "rounds")
    told = [
        skew,
        f"{whose} at most {count(budget, 'exemplar')} per task" if isinstance(budget, int) else None,
        f"a task has {count(rounds, 'round')}" if isinstance(rounds, int) else None,
    ]
    sentence = listed([words for words in told if words])
    return [f"{sentence[0].upper()}{sentence[1:]}."] if sentence else []


def _seeds(rows: Sequence[Group]) -> str:
    sets = {row.seeds for row in rows if row.seeds}
    if len(sets) != 1:
        return ", with different seeds" if sets else ""
    seeds = sets.pop()
    if len(seeds) > MAX_NAMED_SEEDS:
        return f", with {len(seeds)} seeds each"
    return f", with seed {seeds[0]}" if len(seeds) == 1 else f", with seeds {listed(seeds)}"


def _outcome(rows: list[Group]) -> list[str]:
    """Compare the best two; with more than one data set or scenario a ranking would mean nothing."""
    best = rows[0]
    accuracy = best.spread("final_accuracy")
    assert accuracy is not None
    reached = f"{best.label} recognises {accuracy.text(1)} % of the test images of all classes"
    if len(rows) == 1:
        return [f"After the last task {reached}."]
    if not comparable(rows):
        return ["The runs differ in data set or scenario, so the rows of the table are not a ranking."]
    second = rows[1]
    gaps = _paired_gaps(best, second)
    if not gaps:
        return [f"After the last task {reached}, the highest of the {len(rows)}."]
    return [f"After the last task {reached}, the highest; {second.label} follows {_points(gaps)} behind."]


def comparable(rows: Sequence[Group]) -> bool:
    """Say whether rows may be ranked: they share data set and scenario."""
    configs = [row.runs[0].config for row in rows]
    first = configs[0] if configs else {}
    return bool(first) and all(c.get(k) == first.get(k) for c in configs for k in ("data", "scenario"))


def _paired_gaps(one: Group, other: Group) -> list[float]:
    """Return differences in final accuracy for the seeds that both have: the same seed is the same split."""
    mine, theirs = ({r.seed: r.result.final_accuracy for r in g.shown if r.result} for g in (one, other))
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def _corrections(rows: list[Group]) -> list[str]:
    gains = {row.label: [_gain(run) for run in row.shown if run.result] for row in rows if row.has_correction}
    if not gains:
        return ["None of these methods corrects its predictions."]
    if len(gains) > MAX_CORRECTED_ROWS:
        low, high = (f"{v:+.1f}".replace("-", MINUS) for v in (f(map(fmean, gains.values())) for f in (min, max)))
        noun = "methods" if len({row.method for row in rows}) == len(rows) else "settings"
        return [f"The correction changes the final accuracy of {len(gains)} {noun}, by {low} to {high} points."]
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
