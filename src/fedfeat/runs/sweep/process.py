"""A process that works for this one: jobs go in as lines, events and outcomes come back as lines."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from fedfeat.runs.sweep.outcome import Event, Outcome, Planned


class WorkerProcess:
    """``fedfeat.runs.sweep.worker`` at the other end of two pipes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedfeat.runs.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env=dict(environment),
        )

    def work(self, job: Planned, listener: Callable[[Event], None]) -> Outcome:
        """Hand one run over and wait for its outcome, which for a process that died says how."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"config": job.config.to_table(), "path": str(job.path)}) + "\n")
            stdin.flush()
        for line in stdout:
            message: dict[str, Any] = json.loads(line)
            if message["event"] == "outcome":
                return Outcome(job.config, job.path, message["result"], message["error"])
            listener(message)
        return Outcome(job.config, job.path, None, f"{job.path}: {self._death()}; run it again to continue")

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
