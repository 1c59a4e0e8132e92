"""Runs on this machine: one after another in this process, or several at once in processes of their own.

A process works for this one at the other end of two pipes: jobs go in as lines, events and outcomes come back as lines.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any, cast

import torch

from fedfeat.config.config import make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.sweep.planned import Event, Planned, RunOutcome, RunPool, Watch, attempt

Message = tuple[Planned, Event | RunOutcome]


def in_turn(runs: Sequence[Planned], watch: Watch) -> Iterator[RunOutcome]:
    """Run one after another in this process."""
    for run in runs:
        yield attempt(run, (partial(watch, run),))
        gc.collect()  # what the engine held on its device goes before the next one asks for room
        torch.cuda.empty_cache()  # nothing where no GPU was used


def processes(workers: int, gpus: Sequence[int] = ()) -> RunPool:
    """Return a pool of processes; with ``gpus``, worker ``i`` sees only the GPU ``gpus[i % len(gpus)]``."""

    def pool(runs: Sequence[Planned], watch: Watch) -> Iterator[RunOutcome]:
        jobs: Queue[Planned] = Queue()
        for run in runs:
            jobs.put(run)
        messages: Queue[Message] = Queue()
        count = min(workers, len(runs))
        feeders = [_Feeder(_environment(i, count, gpus), jobs, messages) for i in range(count)]
        try:
            for feeder in feeders:
                feeder.start()
            left = len(runs)
            while left:
                run, message = messages.get()
                if isinstance(message, RunOutcome):
                    left -= 1
                    yield message
                else:
                    watch(run, message)
        finally:
            for feeder in feeders:
                feeder.stop()

    return pool


def _environment(number: int, workers: int, gpus: Sequence[int]) -> dict[str, str]:
    """Return a worker's environment: its GPU, and its share of the processor."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpus[number % len(gpus)])
    return environment


class _Feeder(threading.Thread):
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
                outcome = RunOutcome(job.config, job.path, None, f"{job.path}: no worker process: {error!r}")
            self.messages.put((job, outcome))
        if self.process is not None:
            self.process.end()

    def stop(self) -> None:
        """End now; what was begun can be continued."""
        self.stopping = True
        if self.process is not None:
            self.process.terminate()
        self.join(timeout=10)

    def _outcome(self, job: Planned) -> RunOutcome:
        self.process = self.process or WorkerProcess(self.environment)
        outcome = self.process.work(job, lambda event: self.messages.put((job, event)))
        if outcome.error is not None:
            # Whatever a failure left behind, memory of a GPU above all, ends with the process.
            self.process.end()
            self.process = None
        return outcome


class WorkerProcess:
    """A process that calls ``work_for_parent``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import work_for_parent; work_for_parent()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env=dict(environment),
        )

    def work(self, job: Planned, listener: Callable[[Event], None]) -> RunOutcome:
        """Hand one run over and wait for its outcome, which for a process that died says how."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"config": job.config.to_table(), "path": str(job.path)}) + "\n")
            stdin.flush()
        for line in stdout:
            message: dict[str, Any] = json.loads(line)
            if message["event"] == "outcome":
                return RunOutcome(job.config, job.path, message["result"], message["error"], message["lasting"])
            listener(message)
        return RunOutcome(job.config, job.path, None, f"{job.path}: {self._death()}; run it again to continue")

    def terminate(self) -> None:
        """Ask the process to stop at once."""
        if self.process.poll() is None:
            self.process.terminate()

    def end(self) -> int:
        """Close the process's input, which ends it, and return its exit code."""
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.stderr.close()
        return self.process.wait()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        return cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)

    def _death(self) -> str:
        code = self.process.wait()
        self.stderr.seek(0)
        last = (self.stderr.read().strip().splitlines() or [""])[-1]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the process {how}{f' ({last})' if last else ''}"


def work_for_parent() -> None:
    """Run what the parent asks for until it closes the input."""
    # Lines for the parent go to the original output; whatever else is printed must not mix with them.
    with (
        contextlib.suppress(KeyboardInterrupt, BrokenPipeError),
        os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers,
    ):
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            _say(answers, _answer(json.loads(line), answers))


def _answer(job: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    path = Path(job["path"])
    try:
        run = Planned(make_config(job["config"]), path)
    except FedfeatError as error:
        return {"event": "outcome", "result": None, "error": str(error), "lasting": True}
    with warnings.catch_warnings(record=True) as caught:
        outcome = attempt(run, (lambda event: _say(answers, event),))
    if caught:
        with (path / "warnings.txt").open("a") as file:
            file.writelines(f"{warning.message}\n" for warning in caught)
    return {"event": "outcome", "result": outcome.result, "error": outcome.error, "lasting": outcome.lasting}


def _say(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
