"""A grid without processes: every node is a client in this process, and messages are delivered at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedfeat.engines.flower.app import reply_to
from fedfeat.engines.flower.client import ClientSettings, FederationClient

Fault = Callable[[int, Message], Message | Error | None]
NODE = 1000  # node ids begin here: they are not client ids


class LocalGrid(Grid):
    """Nodes by id; a fault may change a reply, put an error in its place, or drop it by returning None."""

    def __init__(self, nodes: dict[int, FederationClient], fault: Fault | None = None) -> None:
        self.nodes, self.fault = nodes, fault
        self.replies: dict[str, Message] = {}
        self.asked: list[tuple[int, str]] = []
        self._numbers = itertools.count()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"m{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            reply = self._deliver(message)
            if reply is not None:
                self.replies[message_id] = reply
        return ids

    def _deliver(self, message: Message) -> Message | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type.removeprefix("query.")
        self.asked.append((node, kind))
        reply = reply_to(self.nodes[node], kind, message)
        if self.fault is None or kind == "hello":
            return reply
        changed = self.fault(node, reply)
        return Message(changed, reply_to=message) if isinstance(changed, Error) else changed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        # Neither in the order of requests nor in its reverse: arrival order must not matter.
        there = [i for i in message_ids if i in self.replies]
        return [self.replies.pop(i) for i in there[1:] + there[:1]]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def local_nodes(
    folder: Path, data: Path | None, clients: int = 3, *, known_ids: bool = True, model: str | None = None
) -> dict[int, FederationClient]:
    """Clients that look for their data at a path; in the order of nodes, which is not that of ids."""
    order = reversed(range(clients))
    return {
        NODE + place: FederationClient(
            ClientSettings(folder / f"client{k}", f"client{k}", k if known_ids else None, device="cpu", model=model),
            data,
        )
        for place, k in enumerate(order)
    }
