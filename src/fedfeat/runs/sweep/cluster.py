"""Runs on a Ray cluster: each a task, its small files brought back, so that nodes need not share a disk."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedfeat.config.config import make_config
from fedfeat.core.errors import FedfeatError, required
from fedfeat.core.files import write_atomically
from fedfeat.runs.folder import PLUGINS
from fedfeat.runs.sweep.planned import Event, Planned, RunOutcome, RunPool, Watch, attempt

BROUGHT_BACK = ("config.toml", "env.json", "scenario.json", "events.jsonl", "error.txt", "result.json")
Answer = dict[str, Any]


def ray_cluster(address: str, *, workers: int | None = None, per_gpu: int | None = None) -> RunPool:
    """Return a pool on the cluster at an address; ``local`` starts one on this machine with ``workers`` processors."""
    ray = required("ray", "ray", "a sweep on a Ray cluster")

    def pool(runs: Sequence[Planned], watch: Watch) -> Iterator[RunOutcome]:
        if runs:
            with _connected(ray, address, workers):
                yield from _run_all(ray, runs, watch, 1 / per_gpu if per_gpu else 0)

    return pool


@contextlib.contextmanager
def _connected(ray: Any, address: str, workers: int | None) -> Iterator[None]:
    options = {"num_cpus": workers} if address == "local" else {"address": address}
    try:
        _knock(address)
        ray.init(**options, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FedfeatError(
            f"--ray {address}: no cluster answers there ({reason}); start one, or use --ray local"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise an error where nobody listens; Ray itself would try for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


def _run_all(ray: Any, runs: Sequence[Planned], watch: Watch, gpus: float) -> Iterator[RunOutcome]:
    from ray.util.queue import Empty, Queue

    events = Queue(actor_options={"num_cpus": 0})
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_work)
    waiting = {
        task.remote(number, run.config.to_table(), str(run.path.absolute()), events): run
        for number, run in enumerate(runs)
    }
    try:
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=0.5)
            with contextlib.suppress(Empty):
                while True:
                    number, event = events.get_nowait()
                    watch(runs[number], event)
            for reference in done:
                yield _outcome(ray, reference, waiting.pop(reference))
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        events.shutdown()


def _work(number: int, table: dict[str, Any], path: str, events: Any) -> Answer:
    """Run one experiment on a node and return its result with the small files of its folder."""
    folder = Path(path)

    def tell(event: Event) -> None:
        events.put_nowait((number, event))

    try:
        outcome = attempt(Planned(make_config(table), folder), (tell,))
    except FedfeatError as error:
        return {"result": None, "error": str(error), "lasting": True, "files": {}}
    plugins = [path.relative_to(folder).as_posix() for path in (folder / PLUGINS).rglob("*.py")]
    names = (*plugins, *BROUGHT_BACK)  # the result last
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    return {"result": outcome.result, "error": outcome.error, "lasting": outcome.lasting, "files": files}


def _outcome(ray: Any, reference: Any, run: Planned) -> RunOutcome:
    try:
        answer: Answer = ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return RunOutcome(run.config, run.path, None, f"{run.path}: the cluster lost this run ({reason}); run it again")
    # On a shared disk these are the very files; elsewhere they come into being here, the result last.
    if not (run.path / "config.toml").is_file() or not (run.path / "result.json").is_file():
        for name, content in answer["files"].items():
            write_atomically(run.path / name, content)
    return RunOutcome(run.config, run.path, answer["result"], answer["error"], answer["lasting"])
