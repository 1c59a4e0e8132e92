"""A federation as processes: server, SuperLink and gateway, clients resident or stock, and the run itself."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.config.config import Config
from fedfeat.core.audit import AUDIT, AuditLog
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import private_folder, write_json
from fedfeat.engines.flower.addresses import LOOPBACK
from fedfeat.engines.flower.app import app_files
from fedfeat.engines.flower.control import Control, ControlError
from fedfeat.engines.flower.keys import ClientKeys, ServerKeys
from fedfeat.engines.flower.namespace import inherited_socket
from fedfeat.engines.flower.processes import GatewayProcess, Process, SuperExec, SuperLink, SuperNode
from fedfeat.engines.flower.roster import read_roster
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.loop import Event, Listener
from fedfeat.runs.experiment import Experiment, Result
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import refuse_other_folder
from fedfeat.runs.server_app import ERROR_FILE, SERVER_LOG

WATCH_SECONDS = 0.5
WARNING_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d WARNING (.*)")
AGAIN = "start the server again, or with --database make a new key for it"
MOST_FAILURES = 3  # Flower runs in a row that ended without a single new event


def prepare_run(config: Config, path: Path) -> RunFolder:
    """Return the run folder: a new one, or the one that is there if it holds the same experiment."""
    folder = RunFolder(path)
    if folder.config_path.exists():
        refuse_other_folder(folder, config)
        # What changes no result may be changed before a resume: where known data are, how long clients are awaited.
        folder.write_config(config)
        return folder
    return Experiment(config, engine=InProcessEngine).new_folder(path)


def federated(config: Config) -> Config:
    """Return a configuration as a federation runs it: engine flower, and a checkpoint after every round."""
    engine = config.engine.model_copy(update={"name": "flower"})
    run = config.run.model_copy(update={"checkpoint_seconds": 0.0})
    location = config.data.location()  # its processes work in folders of their own
    data = config.data.model_copy(update={"path": None if location is None else str(location.absolute())})
    folder = config.model.location()
    model = config.model.model_copy(update={"path": None if folder is None else str(folder.absolute())})
    return config.model_copy(update={"engine": engine, "run": run, "data": data, "model": model})


@dataclass(frozen=True)
class Server:
    """The server's processes at work."""

    link: SuperLink
    address: str  # where clients connect to
    keys: ServerKeys | None = None

    def run(self, folder: RunFolder, listeners: tuple[Listener, ...] = ()) -> Result:
        """Start the run, or continue it, and watch it to its end; a run that Flower lost is started anew."""
        mistake = folder.path / ERROR_FILE
        mistake.unlink(missing_ok=True)
        tail = EventTail(folder, listeners)
        failures = 0
        with Control(self.link.address, self.link.ca) as control:
            while (result := folder.result()) is None:
                before = tail.position
                status = self._watch(control, folder, tail)
                if mistake.exists():
                    raise FedfeatError(json.loads(mistake.read_text())["error"])
                failures = 0 if tail.position > before else failures + 1
                if folder.result() is None and failures >= MOST_FAILURES:
                    raise FedfeatError(
                        f"the server app ended {failures} times without a new round ({status}); see the logs in "
                        f"{self.link.folder}"
                    )
        tail.tell({"event": "end", "folder": str(folder.path), "result": result})
        return result

    def _watch(self, control: Control, folder: RunFolder, tail: EventTail) -> str:
        """Have Flower run the server app once; return how that ended."""
        known = self._admit(control, folder, tail, None)
        run = control.start(app_files(), {"folder": str(folder.path.absolute())})
        try:
            while not (status := control.status(run)).finished:
                tail.read()
                known = self._admit(control, folder, tail, known)
                time.sleep(WATCH_SECONDS)
        except ControlError as error:
            return str(error)  # a SuperLink without a database was started again, and knows of no run
        except BaseException:
            with suppress(ControlError):
                control.stop(run)
            raise
        finally:
            tail.read()
        return f"{status.text} {status.details}".strip()

    def _admit(
        self, control: Control, folder: RunFolder, tail: EventTail, before: dict[str, bytes] | None
    ) -> dict[str, bytes]:
        """Let in those whose keys hold now, and nobody else; say what changed. Return who they are."""
        if self.keys is None:
            return {}
        valid = self.keys.clients
        if valid == before:
            return valid
        audit = AuditLog(folder.path / AUDIT)
        for name, key in self.keys.watched.keys().items():
            if (refusal := key.refusal()) and (before is None or name in before):
                audit.note("key refused", name=name, reason=refusal)
                tail.tell({"event": "warning", "text": f"{name} is shut out: {refusal}"})
        for name in sorted((valid.keys() - before.keys()) if before is not None else valid):
            audit.note("key accepted", name=name)
        for name in sorted((before or {}).keys() - self.keys.watched.keys().keys()):
            audit.note("key removed", name=name)
        for name in sorted(valid.keys() - control.register_exactly(valid).keys()):
            text = f"{name} was shut out before, and Flower lets no such key in again; {AGAIN}"
            audit.note("key not accepted again", name=name)
            tail.tell({"event": "warning", "text": text})
        return valid


class EventTail:
    """Reads a run's events as they are written, and hands them on."""

    def __init__(self, folder: RunFolder, listeners: tuple[Listener, ...]) -> None:
        self.folder, self.listeners = folder, listeners
        self.position = 0
        self.joined: dict[str, int] = {}
        self.warned = len(self._warnings())  # by servers before this one
        found = folder.checkpoints.peek()
        if found is not None:
            progress, manifest = found
            at = {"task": progress.task + 1, "round": progress.round}
            self.position = manifest["events_size"]
            self.tell({**folder.events()[0], "folder": str(folder.path), "resumed_at": at})

    def read(self) -> None:
        """Hand on what is new; a resumed run has cut the file back and writes the same lines again."""
        self._read_roster()
        self._read_warnings()
        size = self.folder.events_size()
        self.position = min(self.position, size)
        if size == self.position:
            return
        lines, self.position = read_lines(self.folder.events_path, self.position)
        for line in lines:
            event: Event = json.loads(line)
            if event["event"] == "start":
                event |= {"folder": str(self.folder.path), "resumed_at": None}
            self.tell(event)

    def _read_roster(self) -> None:
        known = read_roster(self.folder.path)[1]
        for name in sorted(known.keys() - self.joined.keys()):
            self.tell({"event": "joined", "name": name, "client": known[name]})
        self.joined = known

    def _read_warnings(self) -> None:
        warnings = self._warnings()
        self.warned = min(self.warned, len(warnings))  # a full log was begun anew
        for text in warnings[self.warned :]:
            self.tell({"event": "warning", "text": text})
        self.warned = len(warnings)

    def _warnings(self) -> list[str]:
        path = self.folder.path / SERVER_LOG
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [found[1] for line in lines if (found := WARNING_LINE.match(line))]

    def tell(self, event: Event) -> None:
        """Hand one event on."""
        for listener in self.listeners:
            listener(event)


def read_lines(path: Path, position: int) -> tuple[list[str], int]:
    """Return the whole lines after a position of a file that grows, and the position after them."""
    with path.open("rb") as file:
        position = position if position <= path.stat().st_size else 0  # a full log was begun anew
        file.seek(position)
        whole, newline, _ = file.read().rpartition(b"\n")
    return [line.decode(errors="replace") for line in whole.splitlines()], position + len(whole) + len(newline)


@contextmanager
def server(
    folder: Path,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    keys: ServerKeys | None = None,
    database: bool = False,
) -> Iterator[Server]:
    """Start what a server needs: with keys a gateway at the address, without them a SuperLink on this machine only.

    With a database a SuperLink that is started again goes on where it was. Without one it has forgotten the run, which
    is then started anew: it resumes from its checkpoint, and clients give the replies that they have stored.
    """
    if keys is None and host not in (LOOPBACK, "localhost", "::1"):
        raise FedfeatError(
            f"--listen {host}: a server that others can reach needs certificates and clients' keys; make them with "
            "'fedfeat keys' and pass them with --keys"
        )
    with ExitStack() as stack:
        if keys is None:
            link = stack.enter_context(SuperLink(folder, host=host, port=port, database=database))
            address = link.address
        else:
            link = stack.enter_context(SuperLink(folder, tls=keys.certificates, database=database))
            listening = inherited_socket()
            gateway = GatewayProcess(folder, link, host=host, port=port, listening=listening)
            address = stack.enter_context(gateway).address
        stack.enter_context(SuperExec(folder, link))
        yield Server(link, address, keys)


def client(
    folder: Path,
    name: str,
    server: str,
    options: dict[str, Any],
    *,
    keys: ClientKeys | None = None,
    stock: bool = False,
) -> Process:
    """Return a client's process, not yet started: resident, or Flower's SuperNode.

    :param options: what ``make_client`` understands: client, data, model, device, threads, plugins.
    """
    settings = {**options, "folder": str(folder.absolute() / "state"), "name": name}
    ca, key = (None, None) if keys is None else (keys.ca.absolute(), keys.key.absolute())
    if stock:
        signing = {} if key is None else {"key": str(key)}
        return SuperNode(folder, name, server, ca=ca, key=key, config={**settings, **signing})
    private_folder(folder)
    path = folder.absolute() / f"{name}.settings.json"
    where = {"server": server, "ca": None if ca is None else str(ca), "key": None if key is None else str(key)}
    write_json(path, {**settings, **where})
    return Process(folder, name, [sys.executable, "-m", "fedfeat.engines.flower.resident", str(path)])
