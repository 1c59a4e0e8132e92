"""One command kept running: started under a guard, in an environment without calls home, ended with its family."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedfeat.core.errors import FedfeatError
from fedfeat.engines.flower import guard

START_SECONDS = 90.0
STOP_SECONDS = 2 * guard.GRACE_SECONDS + 5.0


class ProcessError(FedfeatError):
    """A process of the federation that did not start or did not stay."""


def offline_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment with Flower's telemetry, update checks and installations switched off."""
    scripts = sysconfig.get_path("scripts")
    not_proxied = [name for name in (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost") if name]
    return {
        **os.environ,
        # Flower starts its helpers by name.
        "PATH": scripts + os.pathsep + os.environ.get("PATH", os.defpath),
        "NO_PROXY": ",".join(not_proxied),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


class Process:
    """One command kept running by a guard; leaving the context ends it and everything it started."""

    def __init__(
        self,
        folder: Path,
        name: str,
        command: list[str],
        *,
        restart: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.name, self.command, self.restart = folder.absolute(), name, command, restart
        self.log = self.folder / f"{name}.log"
        self._state_file = self.folder / f"{name}.state.json"
        self._environment = offline_environment(self.folder / "flwr", environment)
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the command under its guard."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # logs and messages are nobody else's business
        self._state_file.unlink(missing_ok=True)
        policy = "always" if self.restart else "never"
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(self._state_file), policy, *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def stop(self) -> None:
        """End the command and everything it started; harmless when it has ended already."""
        if self._guard is None:
            return
        running, self._guard = self._guard, None
        assert running.stdin is not None
        with contextlib.suppress(OSError):
            running.stdin.close()
        try:
            running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()

    def alive(self) -> bool:
        """Tell whether the guard is at work; the command itself may just be between two starts."""
        return self._guard is not None and self._guard.poll() is None

    def state(self) -> dict[str, Any]:
        """Return ``pid`` (0 between two starts), ``starts`` and ``last_exit`` of the command."""
        try:
            return dict(json.loads(self._state_file.read_text()))
        except FileNotFoundError:
            return {"pid": 0, "starts": 0, "last_exit": None}

    @property
    def pid(self) -> int:
        """The command's process id, 0 while it is not running."""
        return int(self.state()["pid"])

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for a command without restarts to end and return its exit code; None when time is up."""
        if self._guard is None:
            return None
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        code = self.state()["last_exit"]
        return int(code) if code is not None else None

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def ready(self) -> bool:
        """Tell whether the process answers; one without an interface is ready when it runs."""
        return self.pid != 0

    def wait_ready(self, seconds: float = START_SECONDS) -> Self:
        """Wait until the process answers; an early end or too long a wait is an error with the end of its log."""
        limit = time.monotonic() + seconds
        while not self.ready():
            state = self.state()
            if state["last_exit"] is not None or not self.alive():
                raise ProcessError(f"{self.name} ended while starting; the end of {self.log}:\n{self.tail()}")
            if time.monotonic() > limit:
                raise ProcessError(f"{self.name} did not answer within {seconds:g} s; see {self.log}\n{self.tail()}")
            time.sleep(0.05)
        return self

    def __enter__(self) -> Self:
        try:
            return self.start().wait_ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
