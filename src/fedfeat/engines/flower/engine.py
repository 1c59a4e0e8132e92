"""Engine ``flower``: clients are processes or machines of their own; the loop and the methods do not notice."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfeat.algorithm.engine import Lost
from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.core.errors import one_line
from fedfeat.core.payload import SHARED, Payload, State, moved, number_of
from fedfeat.data import Dataset, fingerprint
from fedfeat.engines.flower.codec import CodecError, Packed, pack, unpack
from fedfeat.engines.flower.messages import ASK, PROTOCOL, Channel, Header, Reply, Request, config_to_send
from fedfeat.engines.flower.roster import Roster
from fedfeat.engines.flower.silence import Silence
from fedfeat.engines.flower.update_norms import oversized
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.evaluation import SENDS
from fedfeat.federation.exchange import needed
from fedfeat.federation.rollback import rollbacks_of
from fedfeat.federation.screen import TRAIN, declared_losses, fault_of, fault_of_header, odd_ones, seconds_of
from fedfeat.federation.secure.sums import Sums
from fedfeat.scenario import Scenario

log = logging.getLogger("fedfeat.server")
GENERATION, HELD = "generation", "held"  # what the server remembers of a client's state: changes, exemplars


class FlowerEngine(InProcessEngine):
    """The server's side: evaluates as the in-process engine does, and asks clients through Flower.

    ``states`` holds, for every client, only how often its state has changed and how many exemplars it keeps.
    """

    def __init__(
        self, config: Config, dataset: Dataset, scenario: Scenario, method: Method, *, channel: Channel, folder: Path
    ) -> None:
        super().__init__(config, dataset, scenario, method)
        self.channel = channel
        greeting = {
            "protocol": PROTOCOL,
            "config": config_to_send(config),
            "data": fingerprint(dataset),
            "backbone": self.network.backbone.fingerprint,
            "rollbacks": [record["to"] for record in rollbacks_of(folder)],
        }
        self.roster = Roster(folder, channel, scenario.num_clients, greeting, config.federation.deadline)
        self.sends = {**method.sends, **declared_losses(method), **(SENDS if dataset.private else {})}
        self.sums = Sums(config, method, private=dataset.private) if config.privacy.secure_aggregation else None
        self.silence = Silence(config.federation.deadline)
        self._lost: dict[int, int] = {}  # the task in which a client last lost its state
        self._met = False  # whether the clients were awaited once
        self._account: dict[str, Any] = {}
        self._masking = 0.0  # seconds that the phases of a masked sum took besides the work itself

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        """Send the requests, wait for replies until the deadline, and yield them in the order of client ids."""
        started = time.perf_counter()
        self._gather(set(requests))
        members = self.roster.members
        packing = time.perf_counter()
        resting = self.silence.resting(requests, needed(self.config.federation.quorum, len(requests)))
        asked = {k: r for k, r in requests.items() if k in members and k not in resting}
        messages = self._messages(op, asked)
        packed = time.perf_counter()
        answers = self._send(op, messages)
        answers |= self._send(op, self._messages(op, self._told_again(op, asked, answers)))
        self.silence.note(op, answers)
        arrived = time.perf_counter()
        replies: dict[int, Payload | Lost] = {k: Lost("missing", "not connected") for k in requests if k not in members}
        replies |= resting
        replies |= {k: self._read(k, op, requests[k], answer) for k, answer in answers.items()}
        whole = {k: r for k, r in replies.items() if not isinstance(r, Lost)}
        for client, fault in {**self._oversized(op, requests, whole), **odd_ones(whole, self.sends)}.items():
            replies[client] = Lost("failed", fault)
        own = packed - packing + time.perf_counter() - arrived
        self._note_time(op, _account(answers, packing - started, arrived - packed, own))
        for client in sorted(replies):
            reply = replies.pop(client)
            if isinstance(reply, Lost):
                self.roster.audit.note(f"reply {reply.fate}", client=client, reason=reply.reason, **self._where(op))
            yield client, Lost(reply.fate, one_line(reply.reason)) if isinstance(reply, Lost) else reply

    def exemplars(self) -> int:
        """Return how many exemplars clients say they keep."""
        return sum(int(number_of(state, HELD)) for state in self.states.values())

    def account(self) -> dict[str, Any]:
        """Return how long clients took, and where the time of the last exchange went."""
        if not self._masking:
            return self._account
        return {**self._account, "time": {**self._account.get("time", {}), "masking": round(self._masking, 3)}}

    def restore(self, states: Mapping[int, State]) -> None:
        """Take up what the server remembers of clients' states."""
        self.states = {k: dict(s) for k, s in states.items()}

    def _where(self, op: str) -> dict[str, Any]:
        return {"op": op, "task": self.task + 1, "round": self.round + 1}

    def _send(self, op: str, messages: Mapping[int, Request]) -> dict[int, Reply | Lost]:
        if messages:
            self.roster.audit.note("asked", clients=sorted(messages), **self._where(op))
        return dict(self.channel.send(ASK, messages, self.silence.deadline(op))) if messages else {}

    def _told_again(
        self, op: str, requests: Mapping[int, Payload], answers: Mapping[int, Reply | Lost]
    ) -> dict[int, Payload]:
        """Note who lost its state, at most once per task, and return what to ask it anew, with what all share."""
        again = {}
        for client, answer in answers.items():
            if not isinstance(answer, Reply) or not answer.header.get("forgot") or fault_of_header(answer.header):
                continue
            if self._lost.get(client) == self.task:
                continue
            self._lost[client] = self.task
            self._remember(client, answer.header)
            self.lost_state.add(client)
            shared = {SHARED + name: value for name, value in self.shared.items()} if op == TRAIN else {}
            again[client] = {**requests[client], **shared}
        return again

    def _gather(self, clients: set[int]) -> None:
        """Wait for all clients once, and later only if fewer than the quorum are there."""
        settings = self.config.federation
        least = needed(settings.quorum, len(clients)) if self._met else len(clients)
        self.roster.wait_for(clients, least, settings.wait)
        if not self._met and self.dataset.private:
            held = {name for classes in self.roster.classes.values() for name in classes}
            if missing := [name for name in self.dataset.class_names if name not in held]:
                log.warning("no client that is connected has an image of: %s", ", ".join(missing))
        self._met = True

    def _messages(self, op: str, requests: Mapping[int, Payload]) -> dict[int, Request]:
        # Most requests carry the same tensors: what is the same is packed once.
        done: list[tuple[Payload, Packed]] = []
        messages = {}
        for client, request in requests.items():
            packed = next((p for r, p in done if _same(r, request)), None)
            if packed is None:
                packed = pack(request)
                done.append((request, packed))
            header: Header = {
                "run": self.roster.run,
                "op": op,
                "task": self.task,
                "round": self.round,
                "client": client,
                "generation": int(number_of(self.states.get(client, {GENERATION: 0}), GENERATION)),
            }
            messages[client] = Request(self.roster.members[client], header, packed)
        return messages

    def _read(self, client: int, op: str, request: Payload, answer: Reply | Lost) -> Payload | Lost:
        if isinstance(answer, Lost):
            return answer
        try:
            return self._opened(client, op, request, answer)
        except Exception as error:  # whatever a client sends, it costs the run no more than this reply
            log.warning("the reply of client %d to %s cannot be used", client, op, exc_info=True)
            return Lost("failed", f"the reply cannot be used ({type(error).__name__}: {error})")

    def _opened(self, client: int, op: str, request: Payload, answer: Reply) -> Payload | Lost:
        header, sizes = answer.header, self.reply_sizes(client)
        if (unfit := fault_of_header(header, sizes["n"])) is not None:
            return Lost("failed", unfit)
        if GENERATION in header:
            self._remember(client, header)
        if header.get("failed"):
            return Lost("failed", str(header["failed"]))
        try:
            reply = unpack(answer.payload)
        except CodecError as error:
            return Lost("failed", str(error))
        fault = None if self._masked(op) else fault_of(op, request, reply, self.sends, sizes)
        if fault is not None:
            return Lost("failed", fault)
        return moved(reply, self.device)

    def _oversized(self, op: str, requests: Mapping[int, Payload], replies: Mapping[int, Payload]) -> dict[int, str]:
        if op != TRAIN or self._masked(op):
            return {}
        trained, privacy = self.model.num_trainable, self.config.privacy
        noise = (privacy.noise or 0.0) * (privacy.clip or 0.0) * math.sqrt(trained)
        return oversized(requests, replies, trained, noise)

    def _note_time(self, op: str, account: dict[str, Any]) -> None:
        _, _, phase = op.partition(".")
        if not phase:
            self._account = account
        elif self._masked(op):
            self._masking = sum(account["time"].values()) + (0.0 if phase == "keys" else self._masking)

    def _masked(self, op: str) -> bool:
        """Tell whether nothing can be seen of a single reply: it belongs to a masked sum."""
        return self.sums is not None and op.partition(".")[0] in self.sums.ops

    def _remember(self, client: int, header: Header) -> None:
        noted: State = {GENERATION: int(header[GENERATION]), HELD: int(header["exemplars"])}
        if self.states.get(client) != noted:
            self.states[client] = noted
            self.touched.add(client)


def _same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(a[k] is b[k] for k in a)


def _account(answers: Mapping[int, Reply | Lost], gathering: float, sending: float, own: float) -> dict[str, Any]:
    """Split an exchange: the slowest client's work, packing and unpacking here, and the rest, spent on the way."""
    heard = {k: a for k, a in answers.items() if isinstance(a, Reply)}
    work = {str(k): round(seconds_of(a.header), 3) for k, a in sorted(heard.items())}
    training = max(work.values(), default=0.0)
    return {
        "client_seconds": work,
        "time": {
            "training": training,
            "serialising": round(own, 3),
            "waiting": round(gathering + max(0.0, sending - training), 3),
        },
    }
