"""Who is who: Flower's nodes come and go under numbers of their own, our clients say hello and keep their ids."""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from fedfeat.federation.outcome import Lost
from fedfeat.files import write_json
from fedfeat.flower.post import Answer, Letter, Post
from fedfeat.flower.protocol import HELLO, Header

ROSTER = "federation.json"
log = logging.getLogger("fedfeat.server")


@dataclass
class Member:
    """A client as the server knows it now."""

    client: int
    name: str
    node: int
    generation: int
    exemplars: int


def read_roster(folder: Path) -> tuple[str, dict[str, int]]:
    """Return what a run folder remembers: the run's name among clients, a new one at first, and ids by client name."""
    try:
        known = json.loads((folder / ROSTER).read_text())
        return str(known["run"]), {str(name): int(k) for name, k in known["clients"].items()}
    except FileNotFoundError:
        return uuid.uuid4().hex, {}


class Roster:
    """The clients of one run, by our ids.

    A client says which of the scenario's clients it is, or is given the lowest free id; the run folder remembers who
    got which.
    """

    def __init__(self, folder: Path, post: Post, clients: int, greeting: Header, deadline: float) -> None:
        self.folder, self.post, self.clients, self.deadline = folder, post, clients, deadline
        self.run, self.names = read_roster(folder)
        self._write()
        self.greeting = {**greeting, "run": self.run}
        self.members: dict[int, Member] = {}
        self.holdings: dict[int, list[str]] = {}  # classes that clients with data of their own say they hold
        self._refused: set[int] = set()  # nodes that cannot take part, until they come back as others

    def refresh(self) -> None:
        """Greet nodes that are new, and forget those that have gone."""
        online = self.post.nodes()
        self.members = {k: m for k, m in self.members.items() if m.node in online}
        self._refused &= online.keys()
        strangers = online.keys() - {m.node for m in self.members.values()} - self._refused
        letters = {node: Letter(node, self.greeting) for node in sorted(strangers)}
        answers = dict(self.post.send(HELLO, letters, self.deadline)) if letters else {}
        hellos = {node: answer.header for node, answer in answers.items() if isinstance(answer, Answer)}
        for node in sorted(hellos, key=lambda node: (str(hellos[node].get("name")), node)):
            self._admit(node, hellos[node], online[node])
        for node, answer in answers.items():
            if isinstance(answer, Lost):
                log.warning("node %d did not say hello: %s", node, answer.reason)

    def wait_for(self, clients: set[int], count: int, seconds: float) -> None:
        """Wait until so many of these clients are connected, or for that long."""
        limit = time.monotonic() + seconds
        self.refresh()
        while len(clients & self.members.keys()) < count and time.monotonic() < limit:
            time.sleep(0.5)
            self.refresh()

    def _admit(self, node: int, hello: Header, registered: str) -> None:
        # Where clients have keys, the name of the key counts: nobody can come as somebody else.
        name, problem = registered or str(hello.get("name")), hello.get("refused")
        client = None if problem else self._id_for(name, hello.get("client"))
        if client is None:
            problem = problem or f"it asks for id {hello.get('client')}, which is taken or not among {self.clients}"
        elif hello.get("data") != self.greeting["data"]:
            problem = "its data set is not the server's (the fingerprints differ)"
        if problem or client is None:
            log.warning("%s cannot take part: %s", name, problem)
            self._refused.add(node)
            return
        # A client that was killed comes back under a new node; the old one lingers for a minute.
        self.members[client] = Member(client, name, node, int(hello["generation"]), int(hello["exemplars"]))
        self.holdings[client] = list(hello.get("classes") or [])
        log.info("%s is client %d", name, client)

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
