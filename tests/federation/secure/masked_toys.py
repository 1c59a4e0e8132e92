"""Clients without data behind a masked exchange: replies are given, and clients can be lost in any phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fedfeat.algorithm.engine import Lost
from fedfeat.core.errors import Refusal
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.codec import pack, unpack
from fedfeat.federation.exchange import Traffic
from fedfeat.federation.secure.client import CLIENTS, KEYS, SEALED, SESSION, SHARES, UNMASK, SecureClient, phase_of
from fedfeat.federation.secure.exchange import SummedExchange
from fedfeat.federation.secure.masked_exchange import MaskedExchange
from fedfeat.federation.secure.signing import Identity
from fedfeat.federation.secure.sums import Sums
from toy import toy_config

MASKED = "masked"
SIZES = {"task": 0, "trained": 6, "C": 4, "N": 2, "d": 3, "triangle": 6, "n": 10_000}


def config_with(clients: int, method: str = "finetune", **changes: Any) -> Any:
    privacy = {"secure_aggregation": True, **changes.pop("privacy", {})}
    return toy_config(method, privacy=privacy, scenario={"clients": clients}, **changes)


def header_at(op: str, client: int, task: int = 0, round: int = 0) -> dict[str, Any]:
    return {"run": "r1", "op": op, "client": client, "task": task, "round": round}


class ToyEngine:
    """Answers from given replies, bare or under masks."""

    def __init__(self, config: Any, replies: Mapping[int, Payload], folder: Path | None = None) -> None:
        self.config, self.replies, self.folder = config, replies, folder
        self.method = config.build_method()
        self.dataset, self.device = SimpleNamespace(private=False), torch.device("cpu")
        self.task = self.round = 0
        self.shared: dict[str, torch.Tensor] = {}
        self.lost_state: set[int] = set()
        self.away: dict[str, set[int]] = {}  # clients that are lost, by phase
        self.seen: dict[str, dict[int, Payload]] = {}  # what the server saw, by phase
        self.spoil: dict[tuple[str, int], Any] = {}  # changes a reply on its way
        self.sums = Sums(config, self.method, private=False)
        self.identities: dict[int, Identity] = {}

    def reply_sizes(self, client: int) -> dict[str, int]:
        return {**SIZES, "task": self.task}

    def client(self, number: int) -> SecureClient:
        """A client, started again for every message: what it knows comes from its disk."""
        assert self.folder is not None
        return SecureClient(self.folder / f"client{number}", self.sums, self.identities.get(number))

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        phase = phase_of(op)[1] or MASKED
        for k, request in sorted(requests.items()):
            if k in self.away.get(phase, ()):
                yield k, Lost("missing", f"away in {phase}")
                continue
            try:
                reply = self.answer(op, k, request)
            except Refusal as refusal:
                yield k, Lost("failed", str(refusal))
                continue
            self.seen.setdefault(phase, {})[k] = reply
            yield k, self.spoil.get((phase, k), lambda reply: reply)(reply)

    def answer(self, op: str, client: int, request: Payload) -> Payload:
        if self.folder is None:
            return dict(self.replies[client])
        packed, header = pack(request), header_at(op, client, self.task, self.round)
        request = unpack(packed)
        if phase_of(op)[1]:
            return self.client(client).answer(header, request, packed.digest())
        layout = self.sums.layout(op, request, self.reply_sizes(client))
        return self.client(client).masked(header, request, packed.digest(), self.replies[client], layout)

    def exchange(self) -> SummedExchange:
        if self.folder is None:
            return SummedExchange(self, self.config, Traffic())  # type: ignore[arg-type]
        return MaskedExchange(self, self.config, Traffic(), self.folder / "server")  # type: ignore[arg-type]


def trained(values: Any, samples: int = 5, **entries: Any) -> Payload:
    """A reply to ``train`` with the weights that a list of numbers makes."""
    return {"weights": torch.tensor(values), "samples": samples, "loss.ce": 1.0, "loss.first_epoch": 2.0, **entries}


def asked(clients: int, weights: Any) -> dict[int, Payload]:
    request: Payload = {"weights": torch.tensor(weights)}
    return {k: dict(request) for k in range(clients)}


class LyingServer:
    """Three honest clients, and a server that may ask them anything."""

    def __init__(self, folder: Path, clients: int = 3, **privacy: Any) -> None:
        replies = {k: trained([0.5 * k, 1.0, -1.0]) for k in range(clients)}
        self.engine = ToyEngine(config_with(clients, privacy=privacy), replies, folder)
        self.everybody = list(range(clients))
        self.session, self.weights = "5e55", torch.zeros(3)
        self.keys: dict[int, torch.Tensor] = {}
        self.sealed: dict[int, torch.Tensor] = {}

    def ask(self, phase: str, client: int, **entries: Any) -> Payload:
        op = "train" if phase == MASKED else f"train.{phase}"
        names = {"clients": CLIENTS, "sealed": SEALED, "keys": KEYS, "weights": "weights"}
        request = {SESSION: self.session, **{names[name]: value for name, value in entries.items()}}
        return self.engine.answer(op, client, request)

    def share(self) -> None:
        """Do the first two phases honestly."""
        self.keys = {k: self.ask(KEYS, k)[KEYS] for k in self.everybody}  # type: ignore[misc]
        self.sealed = {k: self.told_keys(k, self.everybody)[SHARES] for k in self.everybody}  # type: ignore[misc]

    def told_keys(self, client: int, clients: list[int], keys: torch.Tensor | None = None) -> Payload:
        every = torch.cat([self.keys[k] for k in clients]) if keys is None else keys
        return self.ask(SHARES, client, clients=torch.tensor(clients), keys=every)

    def masked(self, client: int, clients: list[int] | None = None) -> Payload:
        return self.ask(MASKED, client, clients=torch.tensor(clients or self.everybody), weights=self.weights)

    def unmask(self, client: int, survivors: list[int], sealed: torch.Tensor | None = None) -> torch.Tensor:
        return self.ask(  # type: ignore[return-value]
            UNMASK,
            client,
            clients=torch.tensor(survivors),
            sealed=self.sealed_for(client) if sealed is None else sealed,
        )[SHARES]

    def sealed_for(self, client: int) -> torch.Tensor:
        senders = [k for k in self.everybody if k != client]
        rows = [self.sealed[s][[k for k in self.everybody if k != s].index(client)] for s in senders]
        return torch.stack(rows)
