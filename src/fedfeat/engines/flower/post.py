"""The server's way to its nodes: letters out, answers in, each matched to its letter by Flower's message id."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedfeat.algorithm.engine import Lost
from fedfeat.engines.flower.codec import CodecError, Packed
from fedfeat.engines.flower.protocol import Header
from fedfeat.engines.flower.records import from_records, to_records

# Flower's word that a node or its message is gone; every other error is the client's own failure.
MISSING = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
CANNOT_RUN = {ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB}
HINT = "; install the same versions of fedfeat and flwr on all machines"


@dataclass(frozen=True)
class Letter:
    """What one node is to answer."""

    node: int
    header: Header
    payload: Packed | None = None


@dataclass(frozen=True)
class Answer:
    """What a node answered, and when, in seconds after the letters were sent."""

    header: Header
    payload: Packed
    after: float


class Post:
    """Sends letters through a Flower grid and waits for the answers."""

    def __init__(self, grid: Grid, poll: float = 0.1) -> None:
        self.grid, self.poll = grid, poll

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are connected now, with the names that their keys were registered under, if any."""
        return {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}

    def send(self, kind: str, letters: Mapping[int, Letter], deadline: float) -> Iterator[tuple[int, Answer | Lost]]:
        """Send letters by key and yield ``(key, answer)`` as they come in; at the deadline, who is missing."""
        started = time.monotonic()
        keys = list(letters)
        messages = [self._message(kind, letters[key], deadline) for key in keys]
        ids = list(self.grid.push_messages(messages))
        waiting = {message_id: key for message_id, key in zip(ids, keys, strict=True) if message_id}
        for key in set(keys) - set(waiting.values()):
            yield key, Lost("missing", "the SuperLink did not take the message")
        del messages
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                if (answered := reply.metadata.reply_to_message_id) in waiting:
                    yield waiting.pop(answered), self._read(reply, time.monotonic() - started)
            if time.monotonic() - started > deadline:
                break
            if waiting:
                time.sleep(self.poll)
        for key in waiting.values():
            yield key, Lost("missing", f"no reply within {deadline:g} s")

    def _message(self, kind: str, letter: Letter, deadline: float) -> Message:
        records = to_records(letter.header, letter.payload)
        return Message(records, letter.node, f"query.{kind}", ttl=deadline + 1.0)

    def _read(self, reply: Message, after: float) -> Answer | Lost:
        if reply.has_error():
            code, hint = reply.error.code, HINT if reply.error.code in CANNOT_RUN else ""
            return Lost("missing" if code in MISSING else "failed", f"{reply.error.reason} ({code}){hint}")
        try:
            return Answer(*from_records(reply.content), after)
        except CodecError as error:
            return Lost("failed", str(error))
        except Exception as error:  # whatever a client sends, it costs the run no more than this reply
            return Lost("failed", f"a message cannot be read: {type(error).__name__}")
