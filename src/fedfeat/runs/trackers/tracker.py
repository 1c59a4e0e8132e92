"""What a tracker is, and the thread that keeps it from ever holding up a run."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedfeat.config import Config
from fedfeat.runs.trackers.scalars import Scalars, result_scalars, scalars, step_of

Event = dict[str, Any]
PATIENCE = 30.0  # seconds that the end of a run waits for a tracker


@dataclass(frozen=True)
class MirroredRun:
    """What a tracker is told when a run begins."""

    config: Config
    folder: Path
    id: str  # the same before and after a resume
    first_step: int  # rounds that were done before, when the run is resumed
    resumed: bool


class Tracker(Protocol):
    """A tracker that numbers are copied to."""

    def log(self, step: int, values: Scalars) -> None:
        """Copy the numbers of one event."""

    def close(self, finished: bool) -> None:
        """Write out what is left; ``finished`` is whether the run reached its end."""


Opener = Callable[[MirroredRun], Tracker]


class MirrorThread:
    """Feeds one tracker from a queue; whatever goes wrong there ends the tracker, with one warning, and not the run."""

    def __init__(self, name: str, open_tracker: Opener, config: Config, folder: Path, id: str) -> None:
        self.name, self.open_tracker = name, open_tracker
        self.config, self.folder, self.id = config, folder, id
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        self.warned = False
        self.thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self.thread.start()

    def __call__(self, event: Event) -> None:
        """Take in an event of the run."""
        self.events.put(event)
        self._warn()

    def close(self) -> None:
        """Let the tracker write what it has, for a while."""
        self.events.put(None)
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            self.error = TimeoutError(f"not done {PATIENCE:.0f} seconds after the run")
        self._warn()

    def _warn(self) -> None:
        # Said from the run's own thread, where warnings can be caught.
        if self.error is not None and not self.warned:
            self.warned = True
            reason = " ".join(str(self.error).split()) or type(self.error).__name__
            warnings.warn(f"tracker.{self.name}: left out from here on, the run goes on ({reason})", stacklevel=3)

    def _work(self) -> None:
        try:
            self._feed()
        except Exception as error:
            self.error = error

    def _feed(self) -> None:
        begun = self.events.get()
        if begun is None:
            return
        rounds, at = int(begun["rounds"]), begun.get("resumed_at")
        step = step_of(at, rounds) if at else 0
        tracker = self.open_tracker(MirroredRun(self.config, self.folder, self.id, step, at is not None))
        finished = False
        try:
            while (event := self.events.get()) is not None:
                finished = event["event"] == "end"
                if not finished:
                    step = step_of(event, rounds)
                tracker.log(step, result_scalars(event["result"]) if finished else scalars(event))
        finally:
            tracker.close(finished)
