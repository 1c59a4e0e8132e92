"""Who is who: Flower's nodes come and go under numbers of their own, our clients say hello and keep their ids."""

from __future__ import annotations

import json
import logging
import time
import uuid
from pathlib import Path

from fedfeat.algorithm.engine import Lost
from fedfeat.core.audit import AUDIT, AuditLog
from fedfeat.core.errors import CheckpointError, one_line
from fedfeat.core.files import write_json
from fedfeat.engines.flower.messages import HELLO, Channel, Header, Reply, Request
from fedfeat.federation.screen import fault_of_header, is_count

ROSTER = "federation.json"
AGAIN_AFTER = 30.0  # seconds until a client that cannot take part is asked again
log = logging.getLogger("fedfeat.server")


def fault_of_hello(hello: Header) -> str | None:
    """Return what is wrong with a hello that does not say itself that something is."""
    wanted, classes = hello.get("client"), hello.get("classes") or []
    if wanted is not None and not is_count(wanted):
        return "its hello asks for an id that is not a number"
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        return "its hello names classes that are not names"
    fault = fault_of_header({"generation": None, **hello})
    return f"its hello cannot be read ({fault})" if fault else None


def read_roster(folder: Path) -> tuple[str, dict[str, int]]:
    """Return what a run folder remembers: the run's name among clients, a new one at first, and ids by client name."""
    try:
        known = json.loads((folder / ROSTER).read_text())
        return str(known["run"]), {str(name): int(k) for name, k in known["clients"].items()}
    except FileNotFoundError:
        return uuid.uuid4().hex, {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{folder / ROSTER}: damaged, so nobody knows which client is which; restore it, or start the run anew"
        ) from None


class Roster:
    """The clients of one run, by our ids.

    A client says which of the scenario's clients it is, or is given the lowest free id; the run folder remembers who
    got which.
    """

    def __init__(self, folder: Path, channel: Channel, clients: int, greeting: Header, deadline: float) -> None:
        self.folder, self.channel, self.clients, self.deadline = folder, channel, clients, deadline
        self.run, self.names = read_roster(folder)
        self._write()
        self.greeting = {**greeting, "run": self.run}
        self.members: dict[int, int] = {}  # the node of each client that is connected
        self.classes: dict[int, list[str]] = {}  # classes that clients with data of their own say they hold
        self._refused: dict[int, tuple[str, float]] = {}  # by node: why, and until when it is left alone
        self.audit = AuditLog(folder / AUDIT)

    def refresh(self) -> None:
        """Greet nodes that are new or were refused a while ago, and forget those that have gone."""
        online = self.channel.nodes()
        self.members = {k: node for k, node in self.members.items() if node in online}
        self._refused = {node: refusal for node, refusal in self._refused.items() if node in online}
        resting = {node for node, (_, until) in self._refused.items() if time.monotonic() < until}
        new = online.keys() - set(self.members.values()) - resting
        requests = {node: Request(node, self.greeting) for node in sorted(new)}
        answers = dict(self.channel.send(HELLO, requests, self.deadline)) if requests else {}
        hellos = {node: answer for node, answer in answers.items() if isinstance(answer, Reply)}
        for node in sorted(hellos, key=lambda node: (str(hellos[node].header.get("name")), node)):
            self._admit(node, hellos[node], online[node])
        for node, answer in answers.items():
            if isinstance(answer, Lost):
                log.warning("node %d did not say hello: %s", node, one_line(answer.reason))

    def wait_for(self, clients: set[int], count: int, seconds: float) -> None:
        """Wait until so many of these clients are connected, or for that long."""
        limit = time.monotonic() + seconds
        self.refresh()
        while len(clients & self.members.keys()) < count and time.monotonic() < limit:
            time.sleep(0.5)
            self.refresh()

    def _admit(self, node: int, answer: Reply, registered: str) -> None:
        hello = answer.header
        # Where clients have keys, the name of the key counts: nobody can come as somebody else.
        name, problem = registered or one_line(hello.get("name"), 80), hello.get("refused") or fault_of_hello(hello)
        client = None if problem else self._id_for(name, hello.get("client"))
        if client is None:
            problem = problem or f"it asks for id {hello.get('client')}, which is taken or not among {self.clients}"
        elif hello.get("data") != self.greeting["data"]:
            problem = "its data set is not the server's (the fingerprints differ)"
        elif hello.get("backbone") != self.greeting.get("backbone"):
            problem = "the model in its folder is not the server's (the fingerprints differ)"
        if problem or client is None:
            self._refuse(node, name, one_line(problem), answer.after)
            return
        self._refused.pop(node, None)
        # A client that was killed comes back under a new node; the old one lingers for a minute.
        self.members[client] = node
        self.classes[client] = list(hello.get("classes") or [])
        log.info("%s is client %d", name, client)
        self.audit.note("joined", name=name, client=client, node=node)

    def _refuse(self, node: int, name: str, problem: str, took: float) -> None:
        before, _ = self._refused.get(node, (None, 0.0))
        if before != problem:
            log.warning("%s cannot take part: %s", name, problem)
            self.audit.note("refused", name=name, node=node, reason=problem)
        # A client may read all its images before it says no, and the run waits for that: ask a slow one less often.
        self._refused[node] = problem, time.monotonic() + max(AGAIN_AFTER, 10 * took)

    def _id_for(self, name: str, wanted: int | None) -> int | None:
        """Return the id of a client; None if it cannot have one."""
        taken = {k for n, k in self.names.items() if n != name}
        free = [k for k in range(self.clients) if k not in taken]
        client = wanted if wanted is not None else self.names.get(name, free[0] if free else None)
        if client not in free:
            return None
        self.names[name] = client
        self._write()
        return client

    def _write(self) -> None:
        write_json(self.folder / ROSTER, {"run": self.run, "clients": self.names})
