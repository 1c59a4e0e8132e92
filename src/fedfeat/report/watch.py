"""The page of runs that are going on: a small server for this machine, which only ever reads files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedfeat.core.errors import FedfeatError
from fedfeat.report.collect import run_folders
from fedfeat.report.group_data import Data
from fedfeat.report.page import data_text, document
from fedfeat.report.page_data import page_data
from fedfeat.report.run import Run, read_run
from fedfeat.runs.remaining import duration, seconds_left

LOOPBACK = "127.0.0.1"
FILES = ("config.toml", "env.json", "scenario.json", "events.jsonl", "result.json", "pictures")
PASSING = ("unfinished:", "events.jsonl")  # what is missing only because a run goes on


class Watched:
    """The data of some folders, read again only where files changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.lock = threading.Lock()
        self.known: dict[Path, tuple[str, Run]] = {}
        self.version, self.data = "", dict[str, object]()

    def newest(self) -> tuple[str, Data]:
        """Return the present version and its data."""
        with self.lock:
            found, waiting = self._find()
            signatures = {path: signature(path) for path in found}
            version = hashlib.sha256(repr([sorted(signatures.items()), waiting]).encode()).hexdigest()[:16]
            if version != self.version:
                runs = [self._read(path, mark) for path, mark in signatures.items()]
                self.data = live_data(runs, waiting)
                self.version = version
            return self.version, self.data

    def _find(self) -> tuple[list[Path], list[str]]:
        """Return run folders, and what is said of folders that hold none yet."""
        found, waiting = list[Path](), list[str]()
        for folder in self.folders:
            try:
                found += [path for path in run_folders(folder) if path not in found]
            except FedfeatError:
                waiting.append(f"{folder}: waiting for a run to begin in it.")
        return found, waiting

    def _read(self, path: Path, mark: str) -> Run:
        old = self.known.get(path)
        if old is None or old[0] != mark:
            self.known[path] = (mark, read_run(path))
        return self.known[path][1]


def signature(path: Path) -> str:
    """Return something that changes whenever a file of a run does."""
    marks = []
    for name in FILES:
        try:
            stat = (path / name).stat()
            marks.append(f"{name} {stat.st_mtime_ns} {stat.st_size}")
        except OSError:
            marks.append(f"{name} is not there")
    return "; ".join(marks)


def live_data(runs: Sequence[Run], waiting: Sequence[str] = ()) -> Data:
    """Return the data of a report, with the progress of what goes on instead of a complaint about it."""
    shown = [run if run.finished else _without_passing(run) for run in runs]
    data = page_data(shown)
    going = [run for run in runs if not run.finished]
    if not runs:
        data |= {"title": "Waiting for a run", "headline": list(waiting)}
    state = "Live" if going or not runs else "All runs are finished"
    return data | {"progress": [progress(run) for run in going], "live": state}


def _without_passing(run: Run) -> Run:
    return replace(run, missing=tuple(s for s in run.missing if not s.startswith(PASSING)))


def progress(run: Run) -> Data:
    """Return how far an unfinished run is, in rounds and as text."""
    train = run.config.get("train")
    rounds = train.get("rounds") if isinstance(train, dict) else None
    per_task = rounds if isinstance(rounds, int) else 0
    tasks = len(run.scenario.tasks) if run.scenario else 0
    seed = "" if run.seed is None else f", seed {run.seed}"
    whole = bool(run.tasks) and not run.rounds  # a method without rounds of training: its tasks are counted
    return {
        "name": f"{run.method}{seed}",
        "folder": str(run.path),
        "done": len(run.tasks if whole else run.rounds),
        "all": tasks if whole else per_task * tasks,
        "text": _position(run, tasks, per_task),
    }


def _position(run: Run, tasks: int, per_task: int) -> str:
    of_tasks, of_rounds = (f" of {n}" if n else "" for n in (tasks, per_task))
    if not run.rounds:
        return f"task {len(run.tasks)}{of_tasks} finished" if run.tasks else "no round finished yet"
    last = run.rounds[-1]
    speed = f"{last.images_per_second:,.0f} images/s"
    return f"task {last.task}{of_tasks}, round {last.round}{of_rounds}, {speed}{_left(run, per_task)}"


def _left(run: Run, per_task: int) -> str:
    """Say how long a run still takes, where its files tell."""
    images = [task.samples or 1 for task in run.scenario.tasks] if run.scenario else []
    done = [(r.task, r.seconds) for r in run.rounds if r.seconds is not None and r.task <= len(images)]
    if not done or not per_task:
        return ""
    last = run.rounds[-1]
    return f", about {duration(seconds_left(done, images, per_task, (last.task, last.round)))} left"


class PageServer(ThreadingHTTPServer):
    """Serves the page and its data to browsers on this machine."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        self.watched = Watched(folders)
        super().__init__((LOOPBACK, port), PageHandler)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        """Names under which a browser may ask; any other name was made to point here by somebody else."""
        return {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}


class PageHandler(BaseHTTPRequestHandler):
    """Answers two addresses, and only to those who ask for this machine by its own name."""

    server: PageServer
    server_version, sys_version = "fedfeat", ""

    def do_GET(self) -> None:
        """Send the page, or its data where they are newer than what the browser has."""
        if self.headers.get("Host") not in self.server.hosts:
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is served on this machine alone\n")
        if self.path not in ("/", "/data.json"):
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is only /\n")
        version, data = self.server.watched.newest()
        if self.path == "/":
            return self._send(HTTPStatus.OK, "text/html", document(data, live=True).encode("utf-8", "replace"))
        if self.headers.get("If-None-Match") == f'"{version}"':
            return self._send(HTTPStatus.NOT_MODIFIED, "application/json", b"", version)
        return self._send(HTTPStatus.OK, "application/json", data_text(data).encode(), version)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, version: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        if version is not None:
            self.send_header("ETag", f'"{version}"')
        self.end_headers()
        try:
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser went away

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: one line a second helps nobody."""
