"""What runs say while they go: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fedfeat.runs.identity import tell_apart
from fedfeat.runs.remaining import Clock, duration
from fedfeat.runs.sweep import Event, Planned, RunOutcome, RunPool, finish_planned
from fedfeat.runs.trackers.tracked import step_of

SECONDS_BETWEEN_LINES = 10  # where there is no terminal
console = Console(highlight=False, soft_wrap=True, markup=False)


def experiment_line(event: Event) -> str:
    """Return what a run is, from its first event."""
    return (
        f"{event['method']} on {event['dataset']}: {_length(event)}, "
        f"{event['clients']} clients, {event['parameters']:,} backbone parameters, {event['device']}"
    )


class RunProgress:
    """Listens to a run's events and prints them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.clock = Clock((), 0)
        self.last_line = 0.0
        self.rounds = self.tasks = 0
        self.plan = ""
        self.folder = Path()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        getattr(self, f"_{event['event']}")(event)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _start(self, event: Event) -> None:
        self.rounds, self.tasks = event["rounds"], event["tasks"]
        self.clock = Clock(event.get("images", [1] * self.tasks), self.rounds)
        self.folder = Path(event["folder"])
        at = event["resumed_at"]
        self.console.print(experiment_line(event))
        for note in (event["aggregation"], *event["notes"]):
            self.console.print(note, style="dim")
        if at:
            self.console.print(f"resuming {_place(at)}")
        if self.console.is_terminal:
            columns = (
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.fields[note]}"),
            )
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            done, total = (step_of(place, self.rounds) if place else 0 for place in (at, {"task": self.tasks}))
            self.bar.add_task("rounds" if self.rounds else "tasks", total=total, completed=done, left="", note="")

    def _round(self, event: Event) -> None:
        left = f"{duration(self.clock.left(event['task'], event['round']))} left"
        losses = " ".join(f"{k} {v:.3f}" for k, v in event["losses"].items() if k != "first_epoch")
        note = f"loss {losses}, {event['images_per_second']:,.0f} images/s"
        if "share_of_peak" in event:
            note += f" ({event['share_of_peak']:.0%} of the GPU's matrix peak)"
            self._say_plan(event["clients_at_once"], event["bytes_per_client"])
        where = f"task {event['task']}/{self.tasks} round {event['round']}/{self.rounds}"
        if self.bar is not None:
            done = step_of(event, self.rounds)
            self.bar.update(self.bar.task_ids[0], completed=done, description=where, left=left, note=note)
        elif event["round"] == self.rounds or time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.console.print(f"{where}: {note}, {left}")

    def _say_plan(self, clients: int, bytes_each: int) -> None:
        """Say how the GPU is shared, whenever that changed."""
        each = f"{bytes_each / 2**30:.1f} GiB each"
        plan = f"{clients} clients at once, {each}" if clients > 1 else "one client at a time"
        if plan != self.plan:
            self.plan = plan
            self.console.print(f"engine cuda: {plan}", style="dim")

    def _task(self, event: Event) -> None:
        line = f"after task {event['task']}/{self.tasks}: accuracy {event['accuracy']:.2f} %"
        if event["accuracy"] != event["accuracy_uncorrected"]:
            line += f" ({event['accuracy_uncorrected']:.2f} % without the correction)"
        self.console.print(line + f", {event['exemplars']} exemplars kept")
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=step_of(event, self.rounds))

    def _end(self, event: Event) -> None:
        self.close()
        result = event["result"]
        self.console.print(
            f"final accuracy {result['final_accuracy']:.2f} %, forgetting {result['forgetting']:.2f}{_speed(result)}; "
            f"everything is in {event['folder']}",
            style="bold",
        )


def _length(event: Event) -> str:
    """Say how many tasks and rounds a run has."""
    return f"{event['tasks']} tasks x {event['rounds']} rounds" if event["rounds"] else f"{event['tasks']} tasks"


def _place(at: Mapping[str, int]) -> str:
    """Say where a run goes on; one without rounds has whole tasks behind it."""
    return f"in task {at['task']} after round {at['round']}" if at["round"] else f"after task {at['task']}"


def _speed(result: Mapping[str, Any]) -> str:
    """Say how fast a run trained, if it did."""
    speed = result["images_per_second"]
    return f", {speed:,.0f} images/s" if speed else ""


def finish_all(runs: Sequence[Planned], console: Console, pool: RunPool) -> list[RunOutcome]:
    """Run what is missing with one display, and say what was done."""
    names = tell_apart([run.config for run in runs])
    with SweepProgress(console, dict(zip((run.path for run in runs), names, strict=True))) as progress:
        outcomes = finish_planned(runs, watch=progress, pool=pool)
    console.print(progress.summary(), markup=False, highlight=False)
    return outcomes


def exit_if_failed(outcomes: Sequence[RunOutcome], console: Console) -> None:
    """End with code 1 where a run failed; the others are done and shown by then."""
    failed = sum(outcome.error is not None for outcome in outcomes)
    lasting = sum(outcome.lasting for outcome in outcomes)
    if failed:
        again = "the same command runs them again"
        if lasting == failed:
            again = "they will fail again until what was said above is changed"
        elif lasting:
            again += f", but {lasting} of them will fail until what was said above is changed"
        console.print(f"{failed} of {len(outcomes)} runs failed; {again}", style="red")
        raise typer.Exit(1)


class SweepProgress:
    """Listens to all runs: bars on a terminal, a line now and then and per run elsewhere."""

    def __init__(self, console: Console, names: Mapping[Path, str]) -> None:
        self.console, self.names, self.total = console, names, len(names)
        self.numbers: dict[Path, int] = {}
        self.notes: set[str] = set()
        self.bars: dict[Path, TaskID] = {}
        self.clocks: dict[Path, Clock] = {}  # of the runs at work
        self.left: dict[Path, float] = {}  # seconds that each of them still takes
        self.lengths: dict[Path, float] = {}  # seconds that runs took, or will have taken
        self.reached: dict[Path, str] = {}  # by each run, after its last finished task
        self.last_line = 0.0
        self.stored = self.done = self.failed = 0
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        left = TextColumn("{task.fields[left]}")
        self.progress = Progress(*columns, left, console=console, transient=True, disable=not console.is_terminal)
        self.whole = self.progress.add_task("runs", total=self.total, left="")

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
        resumed = f", resuming {_place(at)}" if at else ""
        self._say(run, f"{event['dataset']}, {_length(event)} on {event['device']}{resumed}")
        for note in (event["aggregation"], *event["notes"]):
            if note not in self.notes:
                self.notes.add(note)
                self.console.print(note, style="dim", markup=False, highlight=False)
        done, total = (step_of(place, event["rounds"]) if place else 0 for place in (at, {"task": event["tasks"]}))
        self.bars[run.path] = self.progress.add_task(self.names[run.path], total=total, completed=done, left="")
        self.clocks[run.path] = Clock(event["images"], event["rounds"])

    def _round(self, run: Planned, event: Event) -> None:
        clock = self.clocks[run.path]
        left = self.left[run.path] = clock.left(event["task"], event["round"])
        self.lengths[run.path] = clock.passed + left
        where = f"task {event['task']}/{len(clock.images)} round {event['round']}/{clock.rounds}"
        name, done = f"{self.names[run.path]} {where}", step_of(event, clock.rounds)
        self.progress.update(self.bars[run.path], completed=done, description=name, left=f"{duration(left)} left")
        self.progress.update(self.whole, left=self._all_left())
        # Bars tell on a terminal; elsewhere a line now and then does.
        if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self._say(run, f"{where}{self.reached.get(run.path, '')}, {duration(left)} left, in all {self._all_left()}")

    def _task(self, run: Planned, event: Event) -> None:
        self.progress.update(self.bars[run.path], completed=step_of(event, self.clocks[run.path].rounds))
        self.reached[run.path] = f", accuracy {event['accuracy']:.2f} % after task {event['task']}"

    def _all_left(self) -> str:
        """Say how long all runs still take, if those that have not begun take as long as the others on average."""
        waiting = self.total - self.stored - self.done - self.failed - len(self.clocks)
        mean = sum(self.lengths.values()) / len(self.lengths)
        return f"about {duration((sum(self.left.values()) + waiting * mean) / len(self.clocks))} left"

    def _stored(self, run: Planned, event: Event) -> None:
        self.stored += 1
        self.progress.advance(self.whole)

    def _done(self, run: Planned, event: Event) -> None:
        self.done += 1
        self._close(run)
        outcome: RunOutcome = event["outcome"]
        assert outcome.result is not None
        accuracy = outcome.result["final_accuracy"]
        self._say(run, f"final accuracy {accuracy:.2f} %{_speed(outcome.result)}, in {run.path}", "bold")

    def _failed(self, run: Planned, event: Event) -> None:
        self.failed += 1
        self._close(run)
        self._say(run, f"failed: {event['outcome'].error}", "red")

    def _close(self, run: Planned) -> None:
        if (clock := self.clocks.pop(run.path, None)) is not None:
            self.lengths[run.path] = clock.passed
        self.left.pop(run.path, None)
        bar = self.bars.pop(run.path, None)
        if bar is not None:
            self.progress.remove_task(bar)
        self.progress.advance(self.whole)
