"""Messages between server and clients: their header and payload as Flower's records, and how the server sends them.

Every record of a message is fetched by itself, so a small payload travels in one record with its header. A large one
travels as arrays, one per dtype, which Flower cuts into pieces.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flwr
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from fedfeat.algorithm.engine import Lost
from fedfeat.config.config import Config, Table, make_config
from fedfeat.config.deciding import without_folder
from fedfeat.config.plugins import refuse_missing
from fedfeat.engines.flower.codec import CodecError, Packed

PROTOCOL = 1  # both sides must speak the same
HELLO, ASK = "hello", "ask"  # the two kinds of messages
HEADER_RECORD, ARRAY_RECORD = "words", "arrays"
FLAT = "fedfeat.flat"  # how the bytes of an array are to be read: the numbers of one dtype, end to end
BUFFER = "buffer."  # prefix of buffers that travel with the header
SMALL = 1 << 20  # bytes

# Flower's word that a node or its message is gone; every other error is the client's own failure.
MISSING = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
NO_REPLY = "no reply within"  # of a client that kept silent until the deadline
CANNOT_RUN = {ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB}
HINT = "; install the same versions of fedfeat and flwr on all machines"

HTTP_GRID = "flwr.superlink.grid.http_grid"  # loaded where a server app runs, with a database layer clients can spare
TESTED_VERSIONS = ("1.41.0", "1.42.0")  # of Flower, with which its private parts may be used
# A message is announced before its parts have arrived. Flower then waits one second, and two before the next try.
pull_quickly = partial(pull_objects, initial_backoff=0.05, backoff_cap=0.4, max_tries_per_object=100_000)

Header = dict[str, Any]  # plain values, sent as JSON


def is_tested_version() -> bool:
    """Tell whether the installed version of Flower is one that its private parts were tested in."""
    return flwr.__version__ in TESTED_VERSIONS


def pull_before(ends: float, object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    """Fetch the parts of a reply, waiting for a third of the time that is left until ``ends``, but a second at least.

    Who stops in the middle of an upload has announced a reply that never comes. Flower fetches one reply after another,
    so waiting for that one to the end would cost all others theirs.
    """
    return pull_quickly(object_ids, pull_object_fn, max_time=max((ends - time.monotonic()) / 3, 1.0))


def config_to_send(config: Config) -> Table:
    """Return what clients need of a configuration: not where the server keeps things, nor how it waits."""
    table = config.to_table()
    for name in ("run", "federation", "tracker"):
        table.pop(name, None)
    if "plugins" in table:
        table["plugins"] = [without_folder(entry) for entry in table["plugins"]]
    table["data"] = {k: v for k, v in table["data"].items() if k != "path"}
    return table


def config_received(
    table: Mapping[str, Any], *, engine: Mapping[str, Any], plugins: list[str], model: str | None = None
) -> Config:
    """Return the configuration as a client runs it: on its own device, with its own files of methods and of a model."""
    refuse_missing(table.get("plugins", []), plugins)
    own = {"engine": {**table["engine"], **engine}, "plugins": plugins}
    if model is not None and "path" in table["model"]:
        own["model"] = {**table["model"], "path": model}
    return make_config({**table, **own}, where="the server's configuration")


def to_records(header: Header, packed: Packed | None = None) -> RecordDict:
    """Return what a message carries."""
    packed = packed or Packed("[]", {})
    record = ConfigRecord({"header": json.dumps(header), "manifest": packed.manifest})
    if sum(map(len, packed.buffers.values())) <= SMALL:
        for name, data in packed.buffers.items():
            record[BUFFER + name] = data
        return RecordDict({HEADER_RECORD: record})
    arrays = {name: Array(name, (len(data),), FLAT, data) for name, data in packed.buffers.items()}
    return RecordDict({HEADER_RECORD: record, ARRAY_RECORD: ArrayRecord(arrays)})


def from_records(records: RecordDict) -> tuple[Header, Packed]:
    """Read a message; one that is not ours is refused."""
    try:
        record, arrays = records[HEADER_RECORD], records.get(ARRAY_RECORD, ArrayRecord())
        if not (isinstance(record, ConfigRecord) and isinstance(arrays, ArrayRecord)):
            raise ValueError("records of another kind")
        header = json.loads(str(record["header"]))
        if not isinstance(header, dict) or any(array.stype != FLAT for array in arrays.values()):
            raise ValueError("unknown form")
        buffers = {name: array.data for name, array in arrays.items()}
        small = {k.removeprefix(BUFFER): v for k, v in record.items() if k.startswith(BUFFER)}
        buffers |= {name: data for name, data in small.items() if isinstance(data, bytes)}
        return header, Packed(str(record["manifest"]), buffers)
    except (KeyError, ValueError) as error:
        raise CodecError(f"a message cannot be read: {error}") from error


@dataclass(frozen=True)
class Request:
    """What one node is to answer."""

    node: int
    header: Header
    payload: Packed | None = None


@dataclass(frozen=True)
class Reply:
    """What a node answered, and when, in seconds after the requests were sent."""

    header: Header
    payload: Packed
    after: float


class Channel:
    """Sends requests through a Flower grid and waits for the replies, matched by Flower's message id."""

    def __init__(self, grid: Grid, poll: float = 0.1) -> None:
        self.grid, self.poll = grid, poll

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are connected now, with the names that their keys were registered under, if any."""
        return {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}

    def send(self, kind: str, requests: Mapping[int, Request], deadline: float) -> Iterator[tuple[int, Reply | Lost]]:
        """Send requests by key and yield ``(key, reply)`` as they come in; at the deadline, who is missing."""
        started = time.monotonic()
        if is_tested_version() and (http_grid := sys.modules.get(HTTP_GRID)) is not None:
            http_grid.pull_objects = partial(pull_before, started + deadline)  # type: ignore[attr-defined]
        messages = [
            Message(to_records(r.header, r.payload), r.node, f"query.{kind}", ttl=deadline + 1.0)
            for r in requests.values()
        ]
        waiting = {}
        for key, message_id in zip(requests, self.grid.push_messages(messages), strict=True):
            if message_id:
                waiting[message_id] = key
            else:
                yield key, Lost("missing", "the SuperLink did not take the message")
        del messages
        while waiting:
            for message in self.grid.pull_messages(list(waiting)):
                if (answered := message.metadata.reply_to_message_id) in waiting:
                    yield waiting.pop(answered), _read(message, time.monotonic() - started)
            if time.monotonic() - started > deadline:
                break
            if waiting:
                time.sleep(self.poll)
        for key in waiting.values():
            yield key, Lost("missing", f"{NO_REPLY} {deadline:g} s")


def _read(message: Message, after: float) -> Reply | Lost:
    if message.has_error():
        code, hint = message.error.code, HINT if message.error.code in CANNOT_RUN else ""
        return Lost("missing" if code in MISSING else "failed", f"{message.error.reason} ({code}){hint}")
    try:
        return Reply(*from_records(message.content), after)
    except CodecError as error:
        return Lost("failed", str(error))
    except Exception as error:  # whatever a client sends, it costs the run no more than this reply
        return Lost("failed", f"a message cannot be read: {type(error).__name__}")
