"""What many runs say while they go: one display, whoever runs them and however many at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedfeat.runs.identity import tell_apart
from fedfeat.runs.sweep import Event, Outcome, Planned, finish_planned
from fedfeat.runs.sweep.outcome import Pool

SECONDS_BETWEEN_LINES = 10


def finish_all(
    runs: Sequence[Planned], console: Console, *, workers: int = 1, pool: Pool | None = None
) -> list[Outcome]:
    """Run what is missing with one display, and say what was done."""
    names = tell_apart([run.config for run in runs])
    with SweepProgress(console, dict(zip((run.path for run in runs), names, strict=True))) as progress:
        outcomes = finish_planned(runs, workers=workers, watch=progress, pool=pool)
    console.print(progress.summary(), markup=False, highlight=False)
    return outcomes


def exit_if_failed(outcomes: Sequence[Outcome], console: Console) -> None:
    """End with code 1 where a run failed; the others are done and shown by then."""
    failed = sum(outcome.error is not None for outcome in outcomes)
    if failed:
        console.print(f"{failed} of {len(outcomes)} runs failed; the same command runs them again", style="red")
        raise typer.Exit(1)


class SweepProgress:
    """Listens to all runs: bars on a terminal, a line per task and per run elsewhere."""

    def __init__(self, console: Console, names: Mapping[Path, str]) -> None:
        self.console, self.names, self.total = console, names, len(names)
        self.numbers: dict[Path, int] = {}
        self.notes: set[str] = set()
        self.bars: dict[Path, TaskID] = {}
        self.last_line = 0.0
        self.stored = self.done = self.failed = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.whole = self.progress.add_task("runs", total=self.total)

    def __enter__(self) -> Self:
        """Start the display."""
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()

    def __call__(self, run: Planned, event: Event) -> None:
        """Show one event of one run."""
        self.numbers.setdefault(run.path, len(self.numbers) + 1)
        show = getattr(self, f"_{event['event']}", None)
        if show is not None:
            show(run, event)

    def summary(self) -> str:
        """Say how many runs there are of each kind."""
        parts = [f"{self.done} done now", f"{self.stored} done before", f"{self.failed} failed"]
        return ", ".join(part for part in parts if not part.startswith("0 ")) or "nothing to run"

    def _say(self, run: Planned, text: str, style: str | None = None) -> None:
        self.last_line = time.monotonic()
        label = f"[{self.numbers[run.path]}/{self.total}] {self.names[run.path]}"
        self.console.print(f"{label}: {text}", style=style, markup=False, highlight=False)

    def _start(self, run: Planned, event: Event) -> None:
        at = event["resumed_at"]
        resumed = f", resuming in task {at['task']} after round {at['round']}" if at else ""
        self._say(
            run, f"{event['dataset']}, {event['tasks']} tasks x {event['rounds']} rounds on {event['device']}{resumed}"
        )
        for note in (event["aggregation"], *event["notes"]):
            if note not in self.notes:
                self.notes.add(note)
                self.console.print(note, style="dim", markup=False, highlight=False)
        done = (at["task"] - 1) * event["rounds"] + at["round"] if at else 0
        total = event["tasks"] * event["rounds"]
        self.bars[run.path] = self.progress.add_task(self.names[run.path], total=total, completed=done)

    def _round(self, run: Planned, event: Event) -> None:
        done = (event["task"] - 1) * run.config.train.rounds + event["round"]
        self.progress.update(self.bars[run.path], completed=done)

    def _task(self, run: Planned, event: Event) -> None:
        # Bars tell on a terminal; elsewhere a line now and then does.
        if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            tasks = run.config.scenario.tasks
            self._say(run, f"after task {event['task']}/{tasks}: accuracy {event['accuracy']:.2f} %")

    def _stored(self, run: Planned, event: Event) -> None:
        self.stored += 1
        self.progress.advance(self.whole)

    def _done(self, run: Planned, event: Event) -> None:
        self.done += 1
        self._close(run)
        outcome: Outcome = event["outcome"]
        assert outcome.result is not None
        accuracy, speed = outcome.result["final_accuracy"], outcome.result["images_per_second"]
        self._say(run, f"final accuracy {accuracy:.2f} %, {speed:,.0f} images/s, in {run.path}", "bold")

    def _failed(self, run: Planned, event: Event) -> None:
        self.failed += 1
        self._close(run)
        self._say(run, f"failed: {event['outcome'].error}", "red")

    def _close(self, run: Planned) -> None:
        bar = self.bars.pop(run.path, None)
        if bar is not None:
            self.progress.remove_task(bar)
        self.progress.advance(self.whole)
