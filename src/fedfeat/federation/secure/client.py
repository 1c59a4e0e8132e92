"""A client's side of masked sums, with what it must not forget: which sums it took part in, and what it answered.

The server may lie: about who takes part, who left, and what was asked before. So a client gives its reply of a round
to one sum, answers each phase once (the same request gets the same bytes again), and opens no sum of too few.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfeat.algorithm.engine import DropOut
from fedfeat.core.errors import FedfeatError, Refusal
from fedfeat.core.files import private_folder, write_json
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.federation.secure.protocol import ADVERTISED_BYTES, SEALED_BYTES, ClientSession
from fedfeat.federation.secure.signing import SIGNATURE_BYTES, Identity
from fedfeat.federation.secure.sums import Layout, Sums, encoded, to_payload

KEYS, SHARES, MASKED, UNMASK = "keys", "shares", "masked", "unmask"  # the phases
SESSION, CLIENTS, SEALED = "secure.session", "secure.clients", "secure.sealed"  # entries of requests
KEYS_BYTES = ADVERTISED_BYTES + SIGNATURE_BYTES
ROUNDS_KEPT = 2  # as many as a server's checkpoints reach back
Notes = dict[str, Any]  # of one sum: its seed, the peers' keys, digests of what was asked and answered


def phase_of(op: str) -> tuple[str, str]:
    """Return the operation that a phase belongs to, and the phase: ``train.keys`` opens the sum of ``train``."""
    name, _, phase = op.partition(".")
    return name, phase


class SecureClient:
    """One client in one run."""

    def __init__(self, folder: Path, sums: Sums, identity: Identity | None = None) -> None:
        private_folder(folder)
        self.path, self.sums, self.identity = folder / "sessions.json", sums, identity or Identity()
        self.sessions: dict[str, Notes] = {}
        if self.path.exists():
            try:
                self.sessions = json.loads(self.path.read_text())
            except ValueError:
                raise FedfeatError(
                    f"{self.path}: damaged, so nobody knows which sums this client was in; restore it, or remove it "
                    "when the server begins another round"
                ) from None

    def answer(self, header: Mapping[str, Any], request: Payload, digest: str) -> Payload:
        """Answer a phase that needs no work on data."""
        op, phase = phase_of(header["op"])
        if op not in self.sums.ops or phase not in (KEYS, SHARES, UNMASK):
            raise Refusal(f"secure aggregation: {header['op']!r:.40} is not a phase of a sum in this run")
        notes = self._notes(header, op, phase, request, digest)
        session = self._session(header, op, notes)
        if phase == KEYS:
            reply = self._keys(session, notes, header)
        else:
            reply = (self._shares if phase == SHARES else self._unmask)(session, notes, header, request)
        return self._noted(notes, phase, digest, reply)

    def masked(
        self, header: Mapping[str, Any], request: Payload, digest: str, reply: Payload, layout: Layout
    ) -> Payload:
        """Return a reply under its masks; one to an operation that nothing is summed of has to be empty."""
        op = header["op"]
        if op not in self.sums.ops:
            if reply:
                raise Refusal(f"secure aggregation: {op!r:.40} would send {', '.join(reply):.80} without a mask")
            return reply
        notes = self._notes(header, op, MASKED, request, digest)
        keys = _from_hex(notes.get("keys", {}))
        peers = self._members(request, keys, len(keys))
        try:
            numbers = encoded(reply, request, layout)
        except DropOut as drop_out:
            raise Refusal(drop_out.lost.reason) from None
        self._session(header, op, notes).mask(numbers, keys, peers)
        notes["peers"] = peers
        return self._noted(notes, MASKED, digest, to_payload(numbers))

    def _notes(self, header: Mapping[str, Any], op: str, phase: str, request: Payload, digest: str) -> Notes:
        """Return what is known of a sum; a new one may begin where no reply has left under another one."""
        place, name = (header["task"], header["round"]), str(request.get(SESSION, ""))
        found = self.sessions.get(_key(place, op))
        if found is None or found["session"] != name:
            if phase != KEYS or not name:
                raise Refusal(f"secure aggregation: {phase} of a sum that this client has no keys for")
            left = found is not None and MASKED in found["answers"]
            if left or place < max(map(_place, self.sessions), default=place):
                raise Refusal(
                    f"secure aggregation: {op!r:.40} of task {place[0] + 1}, round {place[1] + 1} was for another sum, "
                    "and the difference of two sums would reveal a reply"
                )
            found = {"session": name, "client": header["client"], "seed": secrets.token_hex(32), "answers": {}}
            self.sessions[_key(place, op)] = found
        if found["client"] != header["client"]:
            raise Refusal(f"secure aggregation: this client is not client {header['client']} of this sum")
        if found["answers"].get(phase, [digest])[0] != digest:
            raise Refusal(f"secure aggregation: {phase} of this sum was answered, and another request came")
        return found

    def _session(self, header: Mapping[str, Any], op: str, notes: Notes) -> ClientSession:
        return ClientSession(bytes.fromhex(notes["seed"]), context_of(notes["session"], op), header["client"])

    def _keys(self, session: ClientSession, notes: Notes, header: Mapping[str, Any]) -> Payload:
        if "signature" not in notes:  # drawn once: another one of the same message would be valid too
            message = _signed(header, session.context, session.client, session.advertised())
            notes["signature"] = self.identity.signature(message).hex()
        return {KEYS: _to_tensor([session.advertised() + bytes.fromhex(notes["signature"])])}

    def _shares(self, session: ClientSession, notes: Notes, header: Mapping[str, Any], request: Payload) -> Payload:
        clients = tensor_of(request, CLIENTS).tolist()
        rows = dict(zip(clients, _rows(tensor_of(request, KEYS), KEYS_BYTES), strict=True))
        keys = {k: row[:ADVERTISED_BYTES] for k, row in rows.items()}
        if keys.get(session.client) != session.advertised() or len(set(keys.values())) < len(clients):
            raise Refusal("secure aggregation: the keys of this sum are not those that were advertised")
        self._members(request, range(self.sums.clients), len(keys))
        signed = {k: _signed(header, session.context, k, keys[k]) for k in keys if k != session.client}
        self.identity.check({k: (message, rows[k][ADVERTISED_BYTES:]) for k, message in signed.items()})
        notes["keys"] = {str(k): key.hex() for k, key in keys.items()}
        return {SHARES: _to_tensor(list(session.sealed_shares(keys, self.sums.threshold(len(keys))).values()))}

    def _unmask(self, session: ClientSession, notes: Notes, header: Mapping[str, Any], request: Payload) -> Payload:
        if MASKED not in notes["answers"]:
            raise Refusal("secure aggregation: this client has no reply in that sum")
        keys, peers = _from_hex(notes["keys"]), notes["peers"]
        stayed = self._members(request, peers, len(keys))
        if session.client not in stayed:
            raise Refusal("secure aggregation: this client is said to have left, and its reply is there")
        others = [k for k in peers if k != session.client]
        messages = dict(zip(others, _rows(tensor_of(request, SEALED), SEALED_BYTES), strict=True))
        threshold = self.sums.threshold(len(keys))
        shares = [session.share_of(k, keys, threshold, messages.get(k, b""), stayed=k in stayed) for k in peers]
        return {SHARES: _to_tensor(shares)}

    def _members(self, request: Payload, among: Collection[int], began: int) -> list[int]:
        """Return who is said to take part; refuse strangers, and fewer than may be in a sum."""
        clients: list[int] = tensor_of(request, CLIENTS).tolist()
        least = max(self.sums.fewest, self.sums.threshold(began))
        if not set(clients) <= set(among) or sorted(set(clients)) != clients:
            raise Refusal("secure aggregation: clients that were not in this sum before")
        if len(clients) < least:
            raise Refusal(f"secure aggregation: {len(clients)} clients are left in a sum that needs {least}")
        return clients

    def _noted(self, notes: Notes, phase: str, request: str, reply: Payload) -> Payload:
        """Note what was asked and answered; when this returns, the reply may leave."""
        answer = [request, _digest(reply)]
        if notes["answers"].setdefault(phase, answer) != answer:
            raise Refusal(f"secure aggregation: {phase} of this sum was answered otherwise before")
        kept = sorted({_place(key) for key in self.sessions})[-ROUNDS_KEPT:]
        self.sessions = {key: notes for key, notes in self.sessions.items() if _place(key) in kept}
        write_json(self.path, self.sessions)
        return reply


def context_of(session: str, op: str) -> bytes:
    """Return what the keys of a sum are bound to."""
    return f"fedfeat {session} {op}".encode()


def _signed(header: Mapping[str, Any], context: bytes, client: int, advertised: bytes) -> bytes:
    """Return what a client signs: its keys, and the one sum that they serve."""
    place = f"{header['run']} {header['task']} {header['round']} {client}"
    return b"%s %s " % (context, place.encode()) + advertised


def _key(place: tuple[int, int], op: str) -> str:
    return f"{place[0]}.{place[1]}.{op}"


def _place(key: str) -> tuple[int, int]:
    task, round, _ = key.split(".", 2)
    return int(task), int(round)


def _from_hex(keys: Mapping[str, str]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(key) for k, key in keys.items()}


def _rows(value: Tensor, size: int) -> list[bytes]:
    if value.dtype != torch.uint8 or value.dim() != 2 or value.shape[1] != size:
        raise Refusal("secure aggregation: keys or shares of another form than asked for")
    return [row.numpy().tobytes() for row in value.cpu()]


def _to_tensor(rows: list[bytes]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(len(rows), -1)


def _digest(reply: Payload) -> str:
    digest = hashlib.sha256()
    for name in reply:
        digest.update(name.encode() + tensor_of(reply, name).numpy().tobytes())
    return digest.hexdigest()
