"""From folders to groups: find runs, group those that differ in the seed alone, and average over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedfeat.config.deciding import deciding_tables, telling_keys
from fedfeat.config.presets import short_name
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat.report.run import Run, read_run

__all__ = ["Group", "Run", "Spread", "find_runs", "group_runs", "read_run"]

MAX_LABEL_KEYS = 3
MOST_IN_CHART = 34
MOST_VALUE = 24
VAGUE = ("name", "path", "seed", "mode", "enabled")  # keys that need their table to be understood


def find_runs(dirs: Iterable[Path]) -> list[Run]:
    """Read the run folders given, and those one or two levels below folders that are none themselves."""
    found: dict[Path, Path] = {}
    for folder in dirs:
        for path in run_folders(folder):
            found.setdefault(path.resolve(), path)
    return [read_run(path) for path in found.values()]


def run_folders(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run's, or the run folders up to two levels below it."""
    if not folder.is_dir():
        raise FedfeatError(f"{folder}: no such folder; give a run folder, or a folder of run folders")
    if (folder / "config.toml").is_file():
        return [folder]
    below = [p.parent for pattern in ("*/config.toml", "*/*/config.toml") for p in folder.glob(pattern)]
    if not below:
        raise FedfeatError(
            f"{folder}: not a run folder (no config.toml in it, nor in folders up to two levels below); "
            "start a run with 'fedfeat run'"
        )
    return sorted(below)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) over seeds; one seed has no deviation."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of some values, None of none."""
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def text(self, digits: int = 2) -> str:
        """Return ``91.46 ± 1.02``."""
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone: one line of the comparison."""

    label: str
    runs: tuple[Run, ...]
    name: str = ""  # the label for charts, where there is less room

    @property
    def method(self) -> str:
        """What was run."""
        return self.runs[0].method

    @property
    def dataset(self) -> str:
        """What it was run on."""
        return self.runs[0].dataset

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs that count: finished ones, one per seed; what there is where none has finished."""
        first = {run.seed: run for run in reversed(self.runs) if run.finished}
        done = tuple(run for run in self.runs if first.get(run.seed) is run)
        return done or tuple(run for run in self.runs if run.tasks or run.rounds)

    @property
    def finished(self) -> bool:
        """Whether at least one run has a result."""
        return any(run.finished for run in self.runs)

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seeds that count and have a result."""
        return tuple(run.seed for run in self.shown if run.finished)

    @property
    def unfinished(self) -> int:
        """How many runs have no result."""
        return sum(not run.finished for run in self.runs)

    @property
    def has_correction(self) -> bool:
        """Whether the correction changes anything in any run."""
        return any(run.has_correction for run in self.shown)

    def spread(self, measure: str) -> Spread | None:
        """Return mean and deviation of a measure of finished runs, such as ``forgetting``; None of no run."""
        return Spread.of([getattr(run.result, measure) for run in self.shown if run.result])


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return groups with labels that tell them apart, the highest final accuracy first."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    members = [sorted(g, key=lambda r: (r.seed is None, r.seed or 0)) for g in groups.values()]
    members.sort(key=_best_first)
    labels = _labels([g[0] for g in members])
    names = _chart_names([short_name(g[0].method) for g in members], labels)
    return [Group(label, tuple(g), name) for label, g, name in zip(labels, members, names, strict=True)]


def _best_first(runs: list[Run]) -> tuple[float, str]:
    done = [run.result.final_accuracy for run in runs if run.result]
    return (-statistics.fmean(done) if done else 1.0), runs[0].method


def setting(run: Run) -> dict[str, Any]:
    """Return what decides a run's result apart from the seed, as dotted keys."""
    return flatten(deciding_tables(run.config, place=True, without=("seed",)))


def _identity(run: Run) -> str:
    # A run whose configuration is lost cannot be said to equal another one.
    unknown = "" if run.config else str(run.path)
    return json.dumps([setting(run), run.method, run.dataset, unknown], default=str, sort_keys=True)


def _labels(firsts: list[Run]) -> list[str]:
    """Name groups by method, and by the shared settings in which they differ."""
    settings = [setting(run) for run in firsts]
    tables = [set(run.config) for run in firsts]
    differing = [
        {
            key
            for other, there in zip(settings, tables, strict=True)
            for key in {*mine, *other} - {"method"}
            if key.split(".")[0] in here & there and _differ(key, mine, other)
        }
        for mine, here in zip(settings, tables, strict=True)
    ]
    needed = telling_keys(settings, [run.method for run in firsts])
    short = {key: _shortest(key, set.union(*differing)) for key in set.union(*differing, set())}
    values = {key: _values([mine[key] for mine in settings if key in mine]) for key in short}
    labels: list[str] = []
    for mine, keys, run in zip(settings, differing, firsts, strict=True):
        shown = sorted(keys) if len(keys) <= MAX_LABEL_KEYS else [k for k in needed if k in keys]
        told = [f"{short[key]}={values[key].get(str(mine.get(key)), mine.get(key))}" for key in shown]
        told += [f"{len(keys) - len(shown)} more"] if len(keys) > len(shown) else []
        name = short_name(run.method)
        labels.append(_unique(f"{name} ({', '.join(told)})" if told else name, labels))
    return labels


def _differ(key: str, mine: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two groups differ in a key; of data sets with different names the place tells nothing more."""
    if key == "data.path" and mine.get("data.name") != other.get("data.name"):
        return False
    return mine.get(key) != other.get(key)


def _shortest(key: str, among: set[str]) -> str:
    """Return the end of a dotted key that no other one has, and that says something alone."""
    parts = key.split(".")
    first = len(parts) - (2 if parts[-1] in VAGUE else 1)
    ends = (".".join(parts[start:]) for start in range(first, 0, -1))
    return next((end for end in ends if not any(k != key and f".{k}".endswith(f".{end}") for k in among)), key)


def _values(values: Sequence[Any]) -> dict[str, str]:
    """Return how values are told: where one is long, without the folders that all of them begin with."""
    texts = dict.fromkeys(map(str, values))
    parts = {text: text.split("/") for text in texts}
    shared = len(list(takewhile(lambda names: len(set(names)) == 1, zip(*parts.values(), strict=False))))
    if len(texts) < 2 or not shared or max(map(len, texts)) <= MOST_VALUE:
        return {text: text for text in texts}
    return {text: "/".join(["\u2026", *names[shared:]]) for text, names in parts.items()}


def _chart_names(methods: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return labels for charts: where one is long, the method gives way and the part in which runs differ stays."""
    rests = [label[len(method) :].strip() for method, label in zip(methods, labels, strict=True)]
    if max(map(len, labels), default=0) <= MOST_IN_CHART or not all(rests):
        return list(labels)
    if len(set(methods)) == 1:
        return [rest.removeprefix("(").removesuffix(")") for rest in rests]
    room = max(MOST_IN_CHART - max(map(len, rests)) - 2, 6)
    cut = [method if len(method) <= room + 1 else f"{method[:room]}\u2026" for method in methods]
    names = [f"{method} {rest}" for method, rest in zip(cut, rests, strict=True)]
    return names if len(set(names)) == len(names) else list(labels)


def _unique(label: str, taken: list[str]) -> str:
    number = 1 + sum(t == label or t.startswith(f"{label} #") for t in taken)
    return label if number == 1 else f"{label} #{number}"


def problems(runs: Sequence[Run]) -> list[tuple[Path, str]]:
    """Return everything that is missing or does not count, as (folder, sentence)."""
    twice = "seed {} was run more than once with this setting; this run does not count"
    return [(run.path, sentence) for run in runs for sentence in run.missing] + [
        (run.path, twice.format(run.seed))
        for group in group_runs(runs)
        for run in group.runs
        if run.finished and not any(run is other for other in group.shown)
    ]
