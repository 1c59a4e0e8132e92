"""What a run says while it goes: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Event = dict[str, Any]


class RunProgress:
    """Listens to a run's events and prints them."""

    def __init__(self, console: Console, label: str = "") -> None:
        self.console = console
        self.label = f"{label}: " if label else ""
        self.bar: Progress | None = None
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
        self.folder = Path(event["folder"])
        at = event["resumed_at"]
        self.console.print(
            f"{self.label}{event['method']} on {event['dataset']}: {self.tasks} tasks x {self.rounds} rounds, "
            f"{event['clients']} clients, {event['parameters']:,} backbone parameters, {event['device']}"
        )
        self.console.print(f"{self.label}{event['aggregation']}", style="dim")
        for note in event["notes"]:
            self.console.print(f"{self.label}{note}", style="dim")
        if at:
            self.console.print(f"{self.label}resuming in task {at['task']} after round {at['round']}")
        if self.console.is_terminal:
            columns = (
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            done = (at["task"] - 1) * self.rounds + at["round"] if at else 0
            self.bar.add_task("rounds", total=self.tasks * self.rounds, completed=done, note="")

    def _round(self, event: Event) -> None:
        losses = " ".join(f"{k} {v:.3f}" for k, v in event["losses"].items() if k != "first_epoch")
        note = f"loss {losses}, {event['images_per_second']:,.0f} images/s"
        if "share_of_peak" in event:
            note += f" ({event['share_of_peak']:.0%} of the card's matrix peak)"
            self._say_plan(event["clients_at_once"], event["bytes_per_client"])
        if self.bar is not None:
            done = (event["task"] - 1) * self.rounds + event["round"]
            description = f"task {event['task']}/{self.tasks} round {event['round']}/{self.rounds}"
            self.bar.update(self.bar.task_ids[0], completed=done, description=description, note=note)
        elif event["round"] == self.rounds or time.monotonic() - self.last_line > 10:
            self.last_line = time.monotonic()
            self.console.print(
                f"{self.label}task {event['task']}/{self.tasks} round {event['round']}/{self.rounds}: {note}"
            )

    def _say_plan(self, clients: int, bytes_each: int) -> None:
        """Say how the card is shared, whenever that changed."""
        each = f"{bytes_each / 2**30:.1f} GiB each"
        plan = f"{clients} clients at once, {each}" if clients > 1 else "one client at a time"
        if plan != self.plan:
            self.plan = plan
            self.console.print(f"{self.label}engine cuda: {plan}", style="dim")

    def _task(self, event: Event) -> None:
        line = f"{self.label}after task {event['task']}/{self.tasks}: accuracy {event['accuracy']:.2f} %"
        if event["accuracy"] != event["accuracy_uncorrected"]:
            line += f" ({event['accuracy_uncorrected']:.2f} % without the correction)"
        self.console.print(line + f", {event['exemplars']} exemplars kept")

    def _end(self, event: Event) -> None:
        self.close()
        result = event["result"]
        self.console.print(
            f"{self.label}final accuracy {result['final_accuracy']:.2f} %, forgetting {result['forgetting']:.2f}, "
            f"{result['images_per_second']:,.0f} images/s; everything is in {event['folder']}",
            style="bold",
        )
