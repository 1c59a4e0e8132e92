"""``--dry-run``: everything is checked, nothing is written, and one table says what would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from fedfeat.cli.progress import experiment_line, finish_all
from fedfeat.config.config import Config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import refuse_unwritable
from fedfeat.core.lock import refuse_locked
from fedfeat.report.tables import terminal_table
from fedfeat.runs.experiment import run_folder
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.forecast import DryRuns, Forecast, TaskForecast, kind_of, total
from fedfeat.runs.identity import tell_apart
from fedfeat.runs.rehearsal import SECONDS
from fedfeat.runs.remaining import duration
from fedfeat.runs.sweep import Planned, RunOutcome, RunPool
from fedfeat.runs.sweep.planned import stored
from fedfeat.runs.trackers.tracked import absent

ALL_SECONDS, LEAST_SECONDS = 300.0, 10.0  # for the rehearsals of many runs together, and for each of them
NUMBERS = ("rounds", "steps", "trained on", "up", "down", "time")
WHAT = (
    "trained on: images, each as often as it is seen; up: to the server; time: from training steps measured just now, "
    "without loading, checkpoints and reports"
)
NOTHING = "nothing was written"


@dataclass(frozen=True)
class DryRun:
    """What would become of one planned run."""

    state: str
    left: TaskForecast | None = None  # what would run; None where nothing would
    error: str | None = None
    notes: tuple[str, ...] = ()


def dry_run(config: Config, out: Path | None, console: Console) -> None:
    """Say task by task what one run would do; what is wrong is raised as by the run."""
    folder = RunFolder(run_folder(config, out))
    folder.refuse_another()
    with console.status("every task in small"):
        found = DryRuns().forecast(config)
    console.print(experiment_line(found.experiment))
    rows = [_task_row(str(number), task) for number, task in enumerate(found.tasks, 1)]
    rows.append(_task_row("all", found.left()))
    console.print(terminal_table(("task", "clients", "images", "kept", *NUMBERS), rows, 0, collapse_padding=True))
    console.print(f"kept: exemplars of earlier tasks; {WHAT}", style="dim")
    for line in (*_about(found), f"folder: {folder.path} (free)", *_warnings([config])):
        console.print(line)
    console.print(NOTHING, style="bold")


def run_all(runs: Sequence[Planned], console: Console, pool: RunPool, *, dry: bool) -> list[RunOutcome]:
    """Run what is missing; a dry run says what that is, and ends there."""
    if not dry:
        return finish_all(runs, console, pool)
    dry_run_all(runs, console)
    raise typer.Exit


def dry_run_all(runs: Sequence[Planned], console: Console) -> None:
    """Say what each planned run would do, and what is finished; end with code 1 where one would fail."""
    unique = list({run.path: run for run in runs}.values())
    names = tell_apart([run.config for run in unique])
    kinds = len({kind_of(run.config) for run in unique})
    seconds = max(min(SECONDS, ALL_SECONDS / max(kinds, 1)), LEAST_SECONDS)
    together, found = DryRuns(seconds), list[DryRun]()
    with console.status("") as status:
        for name, run in zip(names, unique, strict=True):
            status.update(f"{name} ({len(found) + 1} of {len(unique)})")
            found.append(_look_at(run, together))
    left = [dry.left for dry in found if dry.left is not None]
    rows = [[name, dry.state, *_numbers(dry.left)] for name, dry in zip(names, found, strict=True)]
    if left:
        rows.append(["all", f"{len(left)} to run", *_numbers(total(left, [1.0] * len(left)))])
    console.print(terminal_table(("run", "state", *NUMBERS), rows, 2, collapse_padding=True))
    console.print(f"{WHAT}, one run after another", style="dim")
    configs = [run.config for run in unique]
    for line in (*_notes(configs, found), *_warnings(configs)):
        console.print(line)
    wrong = [f"{name}: {dry.error}" for name, dry in zip(names, found, strict=True) if dry.error is not None]
    for line in wrong:
        console.print(line, style="red")
    console.print(NOTHING, style="bold")
    if wrong:
        raise typer.Exit(1)


def _look_at(run: Planned, together: DryRuns) -> DryRun:
    folder = RunFolder(run.path)
    try:
        done = stored(run)
        if done is not None:
            return DryRun("finished") if done.error is None else DryRun("would fail", error=done.error)
        refuse_locked(run.path)
        refuse_unwritable(run.path)
        found = together.forecast(run.config)
    except FedfeatError as error:
        return DryRun("would fail", error=str(error))
    except Exception as error:  # a mistake in a method, which would end its run and no other
        first = (str(error).splitlines() or [""])[0]
        return DryRun("would fail", error=f"{type(error).__name__}: {first}")
    begun = folder.checkpoints.peek() if folder.config_path.is_file() else None
    if begun is None:
        return DryRun("to run", found.left(), notes=found.notes)
    at = begun[0]
    part = 1.0 if at.finished else at.round / run.config.train.rounds
    state = f"begun, task {at.task + 1} round {at.round}"
    return DryRun(state, found.left(at.task + part), notes=found.notes)


def _notes(configs: Sequence[Config], found: Sequence[DryRun]) -> list[str]:
    """Return what is to be said of some runs, once for all methods that it holds for."""
    methods: dict[str, list[str]] = {}
    for config, dry in zip(configs, found, strict=True):
        for note in dry.notes:
            methods.setdefault(note, []).append(config.method)
    return [f"{', '.join(dict.fromkeys(named))}: {note}" for note, named in methods.items()]


def _task_row(name: str, task: TaskForecast) -> list[str]:
    clients = f"{task.participants} of {task.clients}" if task.participants < task.clients else str(task.clients)
    return [name, clients, f"{task.images:,}", f"{task.exemplars:,}", *_numbers(task)]


def _numbers(task: TaskForecast | None) -> list[str]:
    if task is None:
        return [""] * len(NUMBERS)
    counts = [f"{count:,}" for count in (task.rounds, task.steps, task.trained)]
    return [*counts, in_bytes(task.up), in_bytes(task.down), duration(task.seconds)]


def _about(found: Forecast) -> list[str]:
    used, there = found.memory
    memory = [f"memory: {in_bytes(used)} in use at most, of {in_bytes(there)}"] if used and there else []
    return [*memory, *found.notes]


def _warnings(configs: Sequence[Config]) -> list[str]:
    missing = dict.fromkeys(name for config in configs for name in absent(config))
    return [f"tracker.{name}: not installed, so the run would go on without it" for name in missing]


def in_bytes(size: float) -> str:
    """Return a number of bytes for people; 1 MB is a million."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"
