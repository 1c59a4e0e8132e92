"""Runs on this machine: one after another in this process, or several at once in processes of their own."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue

from fedfeat.runs.sweep.outcome import Event, Outcome, Planned, Pool, Watch, attempt
from fedfeat.runs.sweep.process import WorkerProcess

Message = tuple[Planned, Event | Outcome]


def in_turn(runs: Sequence[Planned], watch: Watch) -> Iterator[Outcome]:
    """Run one after another in this process."""
    for run in runs:
        yield attempt(run, (_listener(run, watch),))
        gc.collect()  # what the engine held on its device goes before the next one asks for room


def _listener(run: Planned, watch: Watch) -> Callable[[Event], None]:
    return lambda event: watch(run, event)


def processes(workers: int, gpus: Sequence[int] = ()) -> Pool:
    """Return a pool of processes; with ``gpus``, worker ``i`` sees only the card ``gpus[i % len(gpus)]``."""

    def pool(runs: Sequence[Planned], watch: Watch) -> Iterator[Outcome]:
        jobs: Queue[Planned] = Queue()
        for run in runs:
            jobs.put(run)
        messages: Queue[Message] = Queue()
        count = min(workers, len(runs))
        hands = [_Hand(_environment(i, count, gpus), jobs, messages) for i in range(count)]
        try:
            for hand in hands:
                hand.start()
            left = len(runs)
            while left:
                run, message = messages.get()
                if isinstance(message, Outcome):
                    left -= 1
                    yield message
                else:
                    watch(run, message)
        finally:
            for hand in hands:
                hand.stop()

    return pool


def _environment(number: int, workers: int, gpus: Sequence[int]) -> dict[str, str]:
    """Return a worker's environment: its card, and its share of the processor."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpus[number % len(gpus)])
    return environment


class _Hand(threading.Thread):
    """Feeds a process with runs. One that dies takes its run with it, not the rest: the next run gets a new one."""

    def __init__(self, environment: dict[str, str], jobs: Queue[Planned], messages: Queue[Message]) -> None:
        super().__init__(daemon=True)
        self.environment, self.jobs, self.messages = environment, jobs, messages
        self.process: WorkerProcess | None = None
        self.stopping = False

    def run(self) -> None:
        """Take runs until none is left."""
        while not self.stopping:
            try:
                job = self.jobs.get_nowait()
            except Empty:
                break
            try:
                outcome = self._outcome(job)
            except Exception as error:  # somebody waits for this outcome, whatever happened
                self.process = None
                outcome = Outcome(job.config, job.path, None, f"{job.path}: no worker process: {error!r}")
            self.messages.put((job, outcome))
        if self.process is not None:
            self.process.end()

    def stop(self) -> None:
        """End now; what was begun can be continued."""
        self.stopping = True
        if self.process is not None:
            self.process.terminate()
        self.join(timeout=10)

    def _outcome(self, job: Planned) -> Outcome:
        self.process = self.process or WorkerProcess(self.environment)
        outcome = self.process.work(job, lambda event: self.messages.put((job, event)))
        if outcome.error is not None:
            # Whatever a failure left behind, memory of a card above all, ends with the process.
            self.process.end()
            self.process = None
        return outcome
