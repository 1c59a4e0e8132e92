"""Keeps one command running, and takes its whole family down when the process that asked for it is gone.

It is run as a file, with nothing but the standard library: ``python -I guard.py STATE COMMAND ...``. Its
standard input is a pipe from the process that started it; the end of that pipe, however it came about (also by
``kill -9``), ends the command. One that ends by itself is started again, but not after exit 78. STATE is a JSON file:
pid, starts, last exit. The log beside it, ``NAME.log`` for ``NAME.state.json``, is begun anew when it is full, and the
one before kept.

Flower's processes start others in sessions of their own, which a signal to a process group does not reach. On Linux
the guard therefore adopts every orphan below it and signals all its descendants one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
QUICK_EXIT_SECONDS = 10.0
LONGEST_DELAY_SECONDS = 8.0
GRACE_SECONDS = 8.0
LOOK_SECONDS = 1.0  # between two looks at the log
LARGEST_LOG = 8 << 20
FINAL = 78  # exit of a command that starting it again would not help


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return the ids of all processes below one, from /proc (Linux only; elsewhere none)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything, so fields are counted from the last bracket.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


class Guard:
    """One command, its restarts and its end."""

    def __init__(self, state: Path, command: list[str]) -> None:
        self.state, self.command = state, command
        self.pid = 0
        self.starts = 0
        self.last_exit: int | None = None
        self.started_at = 0.0
        self.delay = 0.5
        self.stopping = False

    def run(self) -> int:
        """Run until told to stop, or until the command ends in a way that starting it again would not help."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake = self._wake_on_signals()
        next_start = time.monotonic()
        while not self.stopping:
            if not self.pid and time.monotonic() >= next_start:
                self._start()
            self._rotate()
            timeout = LOOK_SECONDS if self.pid else max(0.0, next_start - time.monotonic())
            ready, _, _ = select.select([0, wake], [], [], timeout)
            if wake in ready:
                os.read(wake, 4096)
            if 0 in ready and not os.read(0, 4096):
                self.stopping = True
            if self.pid and self._reap():
                self._end_family()
                if self.last_exit == FINAL:
                    break
                next_start = time.monotonic() + self._next_delay()
        self._end_family()
        return self.last_exit or 0

    def _rotate(self) -> None:
        """Put a full log aside; the command goes on writing at its end, which is then the beginning."""
        log = Path(str(self.state).removesuffix(".state.json") + ".log")
        with contextlib.suppress(OSError):
            if log.stat().st_size > LARGEST_LOG:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)

    def _wake_on_signals(self) -> int:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return read_end

    def _on_stop(self, *_: object) -> None:
        self.stopping = True

    def _start(self) -> None:
        self.started_at = time.monotonic()
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_command(guard)
        self.starts += 1
        self._write_state()

    def _become_command(self, guard: int) -> None:
        """Turn this forked child into the command; it never returns."""
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                return  # it died before we could ask to be told
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.execvp(self.command[0], self.command)
        except OSError as error:
            print(f"guard: {self.command[0]} cannot be started: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)

    def _reap(self) -> bool:
        """Collect every child that has ended; return whether the command is among them."""
        ended = False
        with contextlib.suppress(ChildProcessError):
            while (result := os.waitpid(-1, os.WNOHANG))[0]:
                if result[0] == self.pid:
                    self.last_exit = os.waitstatus_to_exitcode(result[1])
                    self.pid, ended = 0, True
                    self._write_state()
        return ended

    def _next_delay(self) -> float:
        """Return how long to wait before the next start: longer and longer for a command that keeps failing."""
        quick = time.monotonic() - self.started_at < QUICK_EXIT_SECONDS
        self.delay = min(2 * self.delay, LONGEST_DELAY_SECONDS) if quick else 1.0
        print(f"guard: exit {self.last_exit}, starting again in {self.delay:g} s", file=sys.stderr, flush=True)
        return self.delay

    def _end_family(self) -> None:
        """Ask the command and everything below it to end, wait a little, then insist."""
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
            self._signal_family(number)
            limit = time.monotonic() + seconds
            while self._family() and time.monotonic() < limit:
                time.sleep(0.02)
                self._reap()

    def _family(self) -> list[int]:
        return descendants(os.getpid()) or ([self.pid] if self.pid else [])

    def _signal_family(self, number: int) -> None:
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _write_state(self) -> None:
        temporary = self.state.with_suffix(".new")
        state = {"pid": self.pid, "starts": self.starts, "last_exit": self.last_exit}
        temporary.write_text(json.dumps(state))
        temporary.replace(self.state)


def main() -> int:
    """Run one command under guard."""
    state, *command = sys.argv[1:]
    return abs(Guard(Path(state), command).run())


if __name__ == "__main__":
    sys.exit(main())
