"""The server's side of masked sums: keys, shares, masked replies, and the shares that open their sum.

What the server has heard is kept in the run folder until the next round. A server that was killed goes on with the
same sum: clients would refuse to be in another one, since two sums over different clients tell their difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedfeat.algorithm.engine import DropOut, Engine, Lost
from fedfeat.config.config import Config
from fedfeat.core.errors import CheckpointError
from fedfeat.core.files import write_atomically
from fedfeat.core.payload import SHARED, Payload
from fedfeat.federation.exchange import NO_REPLY, ExchangeOutcome, Traffic, check_quorum
from fedfeat.federation.screen import TRAIN
from fedfeat.federation.secure.client import (
    CLIENTS,
    KEYS,
    KEYS_BYTES,
    ROUNDS_KEPT,
    SEALED,
    SESSION,
    SHARES,
    UNMASK,
    context_of,
)
from fedfeat.federation.secure.exchange import SummedExchange
from fedfeat.federation.secure.protocol import ADVERTISED_BYTES, SEALED_BYTES, are_keys, remove_masks
from fedfeat.federation.secure.shamir import SHARE_BYTES
from fedfeat.federation.secure.sums import Layout, Numbers, added, from_payload

TOTAL = "total."  # prefix of the masked sum in a transcript


class Transcript:
    """What the server has heard in one sum, in a file of the run folder."""

    def __init__(self, folder: Path, task: int, round: int, op: str) -> None:
        self.path = folder / f"{task:04d}-{round:06d}-{op}.safetensors"
        self.heard: dict[str, np.ndarray] = {}
        if self.path.exists():
            try:
                self.heard = safetensors.numpy.load(self.path.read_bytes())
            except SafetensorError:
                raise CheckpointError(f"{self.path}: damaged; restore it, since clients enter no second sum") from None
        else:
            self._forget_older_rounds()
            self.note(session=np.frombuffer(secrets.token_bytes(16), np.uint8))

    @property
    def session(self) -> str:
        """The name of the sum."""
        return self.heard["session"].tobytes().hex()

    def matrices(self, phase: str) -> dict[int, Tensor] | None:
        """Return what clients answered in a phase; None if it is not over."""
        if phase not in self.heard:
            return None
        answers = torch.from_numpy(self.heard[phase].copy())
        return dict(zip(self.heard[f"{phase}.clients"].tolist(), answers, strict=True))

    def total(self) -> tuple[list[int], Numbers] | None:
        """Return whose masked replies were added up, and their sum; None if some may still come."""
        if "survivors" not in self.heard:
            return None
        names = [name for name in self.heard if name.startswith(TOTAL)]
        order = sorted(names, key=lambda name: int(name.split(".")[1]))
        return self.heard["survivors"].tolist(), {n.split(".", 2)[2]: self.heard[n].copy() for n in order}

    def note(self, **heard: np.ndarray) -> None:
        """Keep what is over; afterwards the next phase may begin."""
        self.heard |= heard
        write_atomically(self.path, safetensors.numpy.save(self.heard))

    def _forget_older_rounds(self) -> None:
        rounds = sorted({path.name[:11] for path in self.path.parent.glob("*.safetensors")} | {self.path.name[:11]})
        for path in self.path.parent.glob("*.safetensors"):
            if path.name[:11] not in rounds[-ROUNDS_KEPT:]:
                path.unlink(missing_ok=True)


class MaskedExchange(SummedExchange):
    """Asks clients four times for a sum; who leaves in between is left out of it, or its masks are."""

    def __init__(self, engine: Engine, config: Config, traffic: Traffic, folder: Path) -> None:
        super().__init__(engine, config, traffic)
        self.folder = folder

    def total(self, op: str, requests: Mapping[int, Payload], layout: Layout, outcome: ExchangeOutcome) -> Numbers:
        """Return the sum over the clients whose masked replies came in time."""
        script = Transcript(self.folder, self.engine.task, self.engine.round, op)
        name: Payload = {SESSION: script.session}
        # 1. Clients advertise keys that serve this one sum.
        keys = script.matrices(KEYS)
        if keys is None:
            keys = self._matrices(op, KEYS, dict.fromkeys(requests, name), (1, KEYS_BYTES), outcome)
            for client in [k for k, row in keys.items() if not are_keys(row.numpy().tobytes())]:
                outcome.lost[client] = Lost("failed", f"{op}.{KEYS}: these are not keys")
                del keys[client]
            self._check_left(outcome, keys, len(requests))
            script.note(**_noted(KEYS, keys))
        began = sorted(keys)
        # 2. Each seals shares of its secrets for every other one.
        shares = script.matrices(SHARES)
        if shares is None:
            told = {**name, CLIENTS: torch.tensor(began), KEYS: torch.cat([keys[k] for k in began])}
            shares = self._matrices(op, SHARES, dict.fromkeys(began, told), (len(began) - 1, SEALED_BYTES), outcome)
            self._check_left(outcome, shares, len(began))
            script.note(**_noted(SHARES, shares))
        peers = sorted(shares)
        # 3. They work, and send what comes of it under their masks.
        survivors, total = script.total() or self._masked(op, requests, name, peers, layout, outcome)
        self._check_left(outcome, survivors, len(began))
        script.note(survivors=np.array(survivors), **_in_order(total))
        # 4. Those who stayed give one share for each: of the own masks of those who stayed, of the pairs of the others.
        told = {**name, CLIENTS: torch.tensor(survivors)}
        asked = {k: {**told, SEALED: _for_one(k, shares, began)} for k in survivors}
        opened = self._matrices(op, UNMASK, asked, (len(peers), SHARE_BYTES), outcome)
        threshold = self.sums.threshold(len(began))
        check_quorum(ExchangeOutcome(f"{op}.{UNMASK}", len(survivors), list(opened), outcome.lost), 0.0, threshold)
        outcome.replied = survivors
        outcome.lost = {k: outcome.lost.get(k, NO_REPLY) for k in requests if k not in survivors}
        given = {k: dict(zip(peers, _rows(matrix), strict=True)) for k, matrix in opened.items()}
        advertised = {k: keys[k].numpy().tobytes()[:ADVERTISED_BYTES] for k in began}
        remove_masks(total, context_of(script.session, op), advertised, peers, survivors, given, threshold)
        return total

    def _masked(
        self,
        op: str,
        requests: Mapping[int, Payload],
        name: Payload,
        peers: Sequence[int],
        layout: Layout,
        outcome: ExchangeOutcome,
    ) -> tuple[list[int], Numbers]:
        told = {**name, CLIENTS: torch.tensor(peers)}
        # Who lost its state said so in the first phase, after the requests were made.
        shared = {SHARED + n: v for n, v in self.engine.shared.items()} if op == TRAIN else {}
        lost = self.engine.lost_state
        asked = {k: {**requests[k], **(shared if k in lost else {}), **told} for k in peers}
        total: Numbers | None = None
        replied = []
        for client, reply in self.ask(op, asked, outcome):
            try:
                total = added(total, from_payload(reply, layout))
            except DropOut as drop_out:
                outcome.lost[client] = drop_out.lost
                continue
            self.traffic.add("up", op, reply)
            replied.append(client)
        return replied, total or {}

    def _matrices(
        self, op: str, phase: str, requests: Mapping[int, Payload], form: tuple[int, int], outcome: ExchangeOutcome
    ) -> dict[int, Tensor]:
        """Return what clients answer in a phase: a matrix of bytes each."""
        entry = KEYS if phase == KEYS else SHARES
        found = {}
        for client, reply in self.ask(f"{op}.{phase}", requests, outcome):
            value = reply.get(entry)
            if not isinstance(value, Tensor) or value.dtype != torch.uint8 or tuple(value.shape) != form:
                outcome.lost[client] = Lost("failed", f"{op}.{phase}: expected {list(form)} bytes")
                continue
            self.traffic.add("up", f"{op}.{phase}", reply)
            found[client] = value.cpu()
        return found

    def _check_left(self, outcome: ExchangeOutcome, replied: Collection[int], began: int) -> None:
        """Stop where too few are left; resumed, the run repeats the phase that they were lost in."""
        least = max(self.sums.threshold(began), self.sums.fewest)
        check_quorum(ExchangeOutcome(outcome.op, outcome.asked, list(replied), outcome.lost), self.quorum, least)


def _noted(phase: str, answers: Mapping[int, Tensor]) -> dict[str, np.ndarray]:
    order = sorted(answers)
    return {phase: np.stack([answers[k].numpy() for k in order]), f"{phase}.clients": np.array(order)}


def _in_order(total: Numbers) -> dict[str, np.ndarray]:
    return {f"{TOTAL}{place}.{name}": array for place, (name, array) in enumerate(total.items())}


def _for_one(receiver: int, shares: Mapping[int, Tensor], began: Sequence[int]) -> Tensor:
    """Return what every other client sealed for one of them."""
    others = {sender: [k for k in began if k != sender] for sender in sorted(shares) if sender != receiver}
    return torch.stack([shares[sender][receivers.index(receiver)] for sender, receivers in others.items()])


def _rows(matrix: Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in matrix]
