"""A client that stays: one process with model and data in memory, connected to the SuperLink by itself.

Flower's stock SuperNode looks for messages every three seconds and starts an interpreter for each. This node looks
often while there is something to do, answers in this very process, and never runs code that the server sent: the app
that comes with a run is not even fetched. It uses parts of Flower that are not public, so it runs with the versions it
was tested with only; with others ``fedfeat client --stock`` takes the SuperNode.

    python -m fedfeat.engines.flower.resident SETTINGS.json
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flwr
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from fedfeat.core.errors import FedfeatError
from fedfeat.engines.flower.addresses import key_refusal
from fedfeat.engines.flower.app import make_client, reply_to, show_log
from fedfeat.engines.flower.client import FederationClient
from fedfeat.engines.flower.guard import FINAL
from fedfeat.engines.flower.messages import ASK, HELLO, is_tested_version, pull_quickly

SHORTEST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds between two looks for messages; each costs the SuperLink a request
log = logging.getLogger("fedfeat.client")


@dataclass(frozen=True)
class Connection:
    """What Flower's fleet connection offers."""

    node: int
    receive: Callable[[], Any]
    send: Callable[..., tuple[set[str], str]]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


def stay(client: FederationClient, server: str, ca: Path | None, key: Path | None) -> None:
    """Connect and answer messages until the connection breaks; whoever started this process starts it again."""
    with http_request_response(server, ca is None, None if ca is None else str(ca), _key_pair(key)) as offered:
        connection = Connection(*offered)
        log.info("connected to %s as node %d", server, connection.node)
        last = time.monotonic()
        while True:
            if take_one(connection, client):
                last = time.monotonic()
            else:
                time.sleep(poll_wait(time.monotonic() - last))


def poll_wait(idle: float) -> float:
    """Return how long to wait before the next look: a tenth of the time since the last message."""
    return min(max(idle / 10, SHORTEST_WAIT), LONGEST_WAIT)


def take_one(connection: Connection, client: FederationClient) -> bool:
    """Fetch one message, answer it and send the answer; tell whether there was one."""
    try:
        received = connection.receive()
        if received is None:
            return False
        message = fetch(connection, *received)
        started = time.perf_counter()
        answer = answer_to(client, message)
        deliver(connection, answer, time.perf_counter() - started)
    except RunNotRunningException:
        log.info("the run has ended meanwhile")
    return True


def fetch(connection: Connection, envelope: Message, tree: Any) -> Message:
    """Pull the parts of a message and put them together."""
    run, message_id = envelope.metadata.run_id, envelope.metadata.message_id
    ids = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))  # a part may occur twice
    contents = pull_quickly(list(ids), partial(connection.pull_object, run))
    connection.confirm(run, message_id)
    message = inflate_object_from_contents(message_id, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = message_id
    return message


def answer_to(client: FederationClient, message: Message) -> Message:
    """Have the client answer; a message that is not ours is refused."""
    kind = message.metadata.message_type.removeprefix("query.")
    try:
        if kind not in (HELLO, ASK):
            raise FedfeatError(f"messages of type {message.metadata.message_type} are not answered here")
        return reply_to(client, kind, message)
    except FedfeatError as error:
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


def deliver(connection: Connection, answer: Message, seconds: float) -> None:
    """Announce an answer and push its parts."""
    run = answer.metadata.run_id
    answer.metadata.__dict__["_message_id"] = answer.object_id
    with no_object_id_recompute():
        wanted, session = connection.send(answer, get_object_tree(answer), seconds)
        push = partial(connection.push_object, run, session)
        push_objects(get_all_nested_objects(answer), push, object_ids_to_push=wanted)


def _key_pair(path: Path | None) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey] | None:
    if path is None:
        return None
    private = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), f"{path}: expected an elliptic-curve key"
    return private, private.public_key()


def main() -> int:
    """Run one resident client from a file of settings."""
    show_log(dates=True)
    settings = json.loads(Path(sys.argv[1]).read_text())
    ca, key = settings.get("ca"), settings.get("key")
    if not is_tested_version():
        log.error("flwr %s was not tested with a resident client; use --stock", flwr.__version__)
        return 2
    client = make_client(settings)
    where = settings["server"], Path(ca) if ca else None, Path(key) if key else None
    try:
        stay(client, *where)
    except (SystemExit, KeyboardInterrupt):  # Flower's ways to say that it was not let in, or is not any more
        log.error("not let in: the server does not know this client's key, or its last session expires in a minute")
    if refused := key_refusal(*where):
        log.error("the server at %s says: %s", settings["server"], refused)
        client.audit.note("key refused", server=settings["server"], reason=refused)
        return FINAL
    return 1  # to be started again


if __name__ == "__main__":
    sys.exit(main())
