"""Copies of a run's numbers in experiment trackers: fed by a thread, so that none ever holds up a run.

The files of the run remain the truth.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedfeat.config.config import Config
from fedfeat.core.files import write_json
from fedfeat.runs.trackers.backends import MLflow, Scalars, TensorBoard, TrackedRun, Tracker, WeightsAndBiases

Event = dict[str, Any]
Opener = Callable[[TrackedRun], Tracker]
OPENERS: dict[str, Opener] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
PATIENCE = 30.0  # seconds that the end of a run waits for a tracker
POSITION = ("event", "task", "round")  # these say where an event belongs
LEFT_OUT = ("client_losses", "traffic", "config")  # a curve per client or message would bury the others


@contextlib.contextmanager
def tracked(config: Config, folder: Path) -> Iterator[tuple[TrackerThread, ...]]:
    """Yield a listener for each tracker that the configuration asks for; they are closed however the run ends."""
    wanted = [name for name in OPENERS if getattr(config.tracker, name)]
    identity = _identity(folder) if wanted else ""
    threads = tuple(TrackerThread(name, OPENERS[name], config, folder, identity) for name in wanted)
    try:
        yield threads
    finally:
        for thread in threads:
            thread.close()


def absent(config: Config) -> list[str]:
    """Return the trackers that the configuration asks for and that are not installed: a run would go on without."""
    return [name for name in OPENERS if getattr(config.tracker, name) and find_spec(name) is None]


def _identity(folder: Path) -> str:
    """Return the run's name among trackers, drawn when it begins and found again when it is resumed."""
    path = folder / "mirror.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(path.read_text())["id"])
    identity = uuid.uuid4().hex[:12]
    write_json(path, {"id": identity})
    return identity


class TrackerThread:
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
        tracker = self.open_tracker(TrackedRun(self.config, self.folder, self.id, step, at is not None))
        finished = False
        try:
            while (event := self.events.get()) is not None:
                finished = event["event"] == "end"
                if not finished:
                    step = step_of(event, rounds)
                tracker.log(step, result_scalars(event["result"]) if finished else scalars(event))
        finally:
            tracker.close(finished)


def step_of(event: Mapping[str, Any], rounds: int) -> int:
    """Return how many rounds of all tasks a run has behind it at an event, or how many tasks if it has no rounds."""
    if rounds == 0:
        return int(event["task"])
    return (int(event["task"]) - 1) * rounds + int(event.get("round", rounds))


def scalars(event: Mapping[str, Any]) -> Scalars:
    """Return every number of a round's or task's event, under names such as ``round/losses/ce``."""
    rest = {key: value for key, value in event.items() if key not in (*POSITION, *LEFT_OUT)}
    return dict(_flat(rest, f"{event['event']}/"))


def result_scalars(result: Mapping[str, Any]) -> Scalars:
    """Return the single numbers of a result, such as ``result/final_accuracy``."""
    return {f"result/{key}": float(value) for key, value in result.items() if _is_number(value) and key != "seed"}


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in table.items():
        if _is_number(value):
            yield prefix + key, float(value)
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        elif key.startswith("per_task") and isinstance(value, list):
            # Other lists are histograms, which belong to the report.
            yield from _flat({str(number): entry for number, entry in enumerate(value, 1)}, f"{prefix}{key}/")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
