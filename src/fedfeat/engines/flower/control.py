"""What the server's operator may do at the SuperLink: register clients' keys, see who is there, start and watch runs.

It speaks to Flower's control interface, which knows no login. So it is used on the loopback interface only, by one
account (`superlink`), and the `gateway` never lets it through.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab

from fedfeat.core.errors import FedfeatError

IN_USE = "Public key already in use"  # what Flower says of a key that was unregistered
Scalar = str | int | float | bool
Query = TypeVar("Query")
Answer = TypeVar("Answer")


class ControlError(FedfeatError):
    """The SuperLink refused, or is not there."""


@dataclass(frozen=True)
class Node:
    """A client's connection as the SuperLink sees it."""

    id: int
    name: str
    status: str
    public_key: bytes

    @property
    def online(self) -> bool:
        """Whether it is connected and sends its heartbeat."""
        return self.status == "online"


@dataclass(frozen=True)
class RunStatus:
    """Where a run of Flower stands: ``pending``, ``starting``, ``running``, or ``finished:`` and how."""

    text: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether it will not go on."""
        return self.text.startswith("finished")


class Control:
    """A connection to the control interface of a SuperLink on this machine.

    :param patience: seconds to wait for a SuperLink that is not there, for example because it is being restarted.
    """

    def __init__(self, address: str, ca: Path | None = None, patience: float = 60.0) -> None:
        self.address, self.patience = address, patience
        self._client = ControlHttpClient.from_server_address(
            address, ca is None, None if ca is None else ca.read_bytes(), interceptors=[]
        )

    def nodes(self) -> list[Node]:
        """Return every client that is registered, connected or not."""
        listed = self._call("list the clients", self._client.ListNodes, ListNodesRequest(), reads=True).nodes_info
        return [Node(n.node_id, n.name, n.status, n.public_key) for n in listed if not n.unregistered_at]

    def register(self, public_key: bytes, name: str) -> int:
        """Let the holder of a key join; ``public_key`` is PEM. Return the id of its node, also if it was known."""
        for node in self.nodes():
            if node.public_key == public_key:
                return node.id
        request = RegisterNodeRequest(public_key=public_key, name=name)
        return self._call(f"register the key of {name}", self._client.RegisterNode, request).node_id

    def unregister(self, node_id: int) -> None:
        """Shut a client out; its key no longer opens anything."""
        request = UnregisterNodeRequest(node_id=node_id)
        self._call(f"unregister node {node_id}", self._client.UnregisterNode, request)

    def register_exactly(self, keys: Mapping[str, bytes]) -> dict[str, int]:
        """Make the given keys, by client name, the only ones that may join; return each client's node id.

        Flower takes no key a second time that was shut out before; such a client has none.
        """
        wanted, joined = set(keys.values()), dict[str, int]()
        for node in self.nodes():
            if node.public_key not in wanted:
                self.unregister(node.id)
        for name, key in keys.items():
            try:
                joined[name] = self.register(key, name)
            except ControlError as error:
                if IN_USE not in str(error):
                    raise
        return joined

    def start(self, app: Mapping[str, bytes], config: Mapping[str, Scalar]) -> int:
        """Start a run of an app, given as its files (``pyproject.toml`` among them); return the run's id."""
        content, _ = build_fab_from_files(dict(app))
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)))
        reply = self._call("start a run", self._client.StartRun, request)
        if not reply.HasField("run_id"):
            raise ControlError(
                f"the SuperLink at {self.address} did not start the run: {reply.note or 'no reason given'}"
            )
        return reply.run_id

    def status(self, run_id: int) -> RunStatus:
        """Return where a run stands."""
        request = ListRunsRequest(run_id=run_id)
        listed = self._call(f"report on run {run_id}", self._client.ListRuns, request, reads=True)
        status = listed.run_dict[run_id].status
        text = f"{status.status}:{status.sub_status}" if status.sub_status else status.status
        return RunStatus(text, status.details)

    def stop(self, run_id: int) -> None:
        """Stop a run; harmless when it has finished, or when the SuperLink is gone already."""
        try:
            self._client.StopRun(StopRunRequest(run_id=run_id))
        except httpx.TransportError:
            return
        except httpx.HTTPStatusError as error:
            if not self.status(run_id).finished:
                raise self._refusal(f"stop run {run_id}", error) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, what: str, function: Callable[[Query], Answer], request: Query, *, reads: bool = False) -> Answer:
        """Call while nobody is there again and again; a call that only reads, also when the connection broke off."""
        limit = time.monotonic() + self.patience
        while True:
            try:
                return function(request)
            except httpx.TransportError as error:
                if time.monotonic() > limit or not (reads or isinstance(error, httpx.ConnectError)):
                    raise self._refusal(what, error) from error
            except httpx.HTTPError as error:
                raise self._refusal(what, error) from error
            time.sleep(0.2)

    def _refusal(self, what: str, error: httpx.HTTPError) -> ControlError:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.HTTPStatusError) and (known := FlowerError.from_json(error.response.text)):
            reason = f"{known.message} {known.public_details or ''}".strip()
        return ControlError(f"the SuperLink at {self.address} did not {what}: {reason}; its log says more")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
