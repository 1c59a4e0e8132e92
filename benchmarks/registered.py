"""Ten participants of ten, and ten of very many: two processes that take turns, so that memory can be compared."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedfeat.runs.checkpoint import CheckpointFolder
from rounds import Rounds, equal_parts, random_images, settings
from timing import Row, Seconds, Timed, memory_row, row, take_turns

PARTICIPANTS = 10
PER_CLIENT = 8  # samples in each of two tasks
ONCE = {"end of task 1 and a round": "next task", "checkpoint after it": "checkpoint"}  # measured, and how to ask
SECTION = f"{PARTICIPANTS} participants, few or many registered"


class Child:
    """A federation in its own process; it works only when asked."""

    def __init__(self, clients: int, images: int, device: str) -> None:
        command = [sys.executable, __file__, str(clients), str(images), device]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> Any:
        """Let it do one thing and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with {self.process.args!r} ended on {what!r}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self.process.communicate()


def registered(device: str, many: int, repetitions: int = 41, target: float = 1.05) -> tuple[list[Row], dict[str, Any]]:
    """Compare rounds, the end of a task, checkpoints and memory; both processes hold the same data set."""
    images = many * PER_CLIENT * 2
    children = {f"{n:,} registered": Child(n, images, device) for n in (many, PARTICIPANTS)}
    variant, base = children
    rows = []
    try:
        memory = {"after set-up": {n: c.ask("memory") for n, c in children.items()}}
        for child in children.values():
            child.ask("reset")
        for task in (1, 2):
            times = take_turns({n: _asker(c, "round") for n, c in children.items()}, repetitions)
            rows.append(_row(f"round of task {task}", variant, base, times, target=target))
            if task == 1:
                memory["peak in rounds"] = {n: c.ask("peak") for n, c in children.items()}
                for what, command in ONCE.items():
                    once = {n: [Seconds(*c.ask(command))] for n, c in children.items()}
                    rows.append(_row(what, variant, base, once, unit="ms"))
        times = take_turns({n: _asker(c, "checkpoint") for n, c in children.items()}, min(repetitions, 15))
        rows.append(_row("checkpoint in task 2", variant, base, times, unit="ms"))
    finally:
        for child in children.values():
            child.close()
    for name, held in memory.items():
        most = target if name == "peak in rounds" else None
        rows.append(memory_row(SECTION, (f"memory {name}, {variant}", base), (held[variant], held[base]), most))
    return rows, {"participants": PARTICIPANTS, "samples_per_client": PER_CLIENT, "images": images}


def _asker(child: Child, what: str) -> Timed:
    return lambda: Seconds(*child.ask(what))


def _row(
    what: str,
    variant: str,
    base: str,
    times: dict[str, list[Seconds]],
    unit: str = "ms per round",
    target: float | None = None,
) -> Row:
    return row(SECTION, (f"{what}, {variant}", base), (times[variant], times[base]), unit=unit, target=target)


def _serve(clients: int, images: int, device: str, folder: Path) -> None:
    scenario = {
        "tasks": 2,
        "clients": clients,
        "participation": PARTICIPANTS,
        "class_order": "natural",
        "budget": 2,
        "budget_scope": "per_client_per_task",
    }
    config = settings("replay", batch=32, threads=1, device=device, epochs=2, scenario=scenario)
    dataset = random_images(8, 1, images)
    rounds = Rounds(config, dataset, equal_parts(config, dataset, [PER_CLIENT] * 2))
    checkpoints = CheckpointFolder(folder)
    for line in sys.stdin:
        match line.strip():
            case "round":
                answer: Seconds | int = rounds()
            case "checkpoint":
                answer = _checkpoint(rounds, checkpoints)
            case "next task":
                answer = _next_task(rounds)
            case "reset":
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
                answer = 0
            case "memory":
                answer = _memory("VmRSS")
            case "peak":
                answer = _memory("VmHWM")
            case other:
                raise ValueError(other)
        print(json.dumps(answer), flush=True)


def _next_task(rounds: Rounds) -> Seconds:
    """End task 1 and do the first round of task 2."""
    started = Seconds(time.perf_counter(), time.process_time())
    rounds.enter_task(2)
    return Seconds(time.perf_counter() - started.wall, time.process_time() - started.cpu)


def _checkpoint(rounds: Rounds, folder: CheckpointFolder) -> Seconds:
    rounds()
    engine = rounds.experiment.engine
    started = Seconds(time.perf_counter(), time.process_time())
    folder.save(rounds.progress, engine.states, engine.touched, {})
    engine.touched.clear()
    return Seconds(time.perf_counter() - started.wall, time.process_time() - started.cpu)


def _memory(entry: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(entry + ":"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(where))
