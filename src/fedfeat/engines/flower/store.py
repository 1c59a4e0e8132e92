"""A client's store on its own disk: its state, and the replies it gave, so that no request is worked on twice.

    journal.json     who the client is in this run, and the last exchanges: request, reply, state afterwards
    journal.checked.json  the same with a checksum: it is what counts, and the other is for a store without it
    objects/HASH     tensors of states, and replies; one that did not change is not written again
    copies/HASH      tensors of states once more: nobody else has them

A reply leaves the client only after the journal with it is on disk. The journal reaches two rounds back, as far as a
server's checkpoints do. A request that it holds already gets the stored reply; a request that differs from the one
noted at the same place, or comes from further back, is worked on from the state of that moment. Where the owner allows
a server to go back, the states at the ends of tasks are kept too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfeat.core.files import json_digest, write_atomically, write_json
from fedfeat.core.payload import State
from fedfeat.engines.flower.codec import CodecError, Packed, decode, encode, pack, unpack
from fedfeat.engines.flower.policy import PolicyError
from fedfeat.federation.rollback import read_place
from fedfeat.federation.screen import TRAIN

COPIES = "copies"
LAST_ROUND = 10**6  # of a task whose rounds the store does not know
ROUNDS_KEPT = 2  # as many as a server keeps checkpoints
Place = tuple[int, int]  # task and round


@dataclass(frozen=True)
class Snapshot:
    """A state as the journal lists it: how often it has changed, plain values as they are, tensors by their hash."""

    generation: int = 0
    plain: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JournalEntry:
    """One exchange that was answered."""

    place: Place
    op: str
    request: str  # digest
    reply: str  # hash of the stored reply
    after: Snapshot


class Store:
    """What one client keeps of one run."""

    def __init__(self, folder: Path, *, keep_ends: bool = False) -> None:
        self.folder, self.keep_ends = folder, keep_ends
        self.base = Snapshot()  # before the first entry
        self.entries: list[JournalEntry] = []
        self.dropped: tuple[int, int, str] | None = None  # place and operation of the last entry before ``base``
        self.ends: dict[int, Snapshot | None] = {}  # states at the ends of earlier tasks; None where it is not kept
        self.rollbacks = 0  # that were taken
        self.sent: Counter[str] = Counter()  # bytes that left this client, by operation and entry
        self._known: dict[str, tuple[Tensor, str]] = {}  # entries of the current state and their hashes
        if self._journal.exists() or self._checked.exists():
            self._read()
        self.reached = self.generation  # the highest so far; a server that remembers more knows of a loss
        self.state = self._load(self.now)

    @property
    def now(self) -> Snapshot:
        """The present state."""
        return self.entries[-1].after if self.entries else self.base

    @property
    def generation(self) -> int:
        """How often the present state has changed; going back to an earlier state lowers it."""
        return self.now.generation

    @property
    def task(self) -> int:
        """The task of the last exchange that was answered; -1 before the first."""
        return self.entries[-1].place[0] if self.entries else self.dropped[0] if self.dropped else -1

    def answered(self, place: Place, op: str, request: str) -> Packed | None:
        """Return the stored reply to this very request; otherwise go back to the state from before it."""
        found = next((i for i, e in enumerate(self.entries) if e.place > place or (e.place, e.op) == (place, op)), None)
        if found is None:
            return None
        entry = self.entries[found]
        if (entry.place, entry.op, entry.request) == (place, op, request):
            reply = self._object(entry.reply)
            if reply is not None:
                return reply
        self.entries = self.entries[:found]
        self.state = self._load(self.now)
        return None

    def may_answer(self, place: Place, op: str, request: str) -> bool:
        """Tell whether a request is the next one, or the very one that was answered at its place."""
        at = [e for e in self.entries if (e.place, e.op) == (place, op)]
        if at:
            return at[0].request == request
        return not self.entries or place >= self.entries[-1].place

    def after(self, place: Place, op: str) -> Snapshot:
        """Return the state that an exchange in the journal ended with."""
        return next(e.after for e in self.entries if (e.place, e.op) == (place, op))

    def tensor(self, snapshot: Snapshot, key: str) -> Tensor | None:
        """Return a tensor of a state in the journal; None if it has none of that name, or it is damaged."""
        name = snapshot.tensors.get(key)
        held = self._known.get(key)
        if held is not None and held[1] == name:
            return held[0]
        return None if name is None else self._tensor(name)

    def commit(
        self, place: Place, op: str, request: str, reply: Packed, state: State, sizes: Mapping[str, int]
    ) -> None:
        """Write what an exchange came to; when this returns, the reply may leave."""
        # Not flushed: after a power cut the round is trained again, with the same outcome.
        name = self._put(reply, flush=False)
        if 0 <= self.task < place[0]:
            self.ends[self.task] = self.now if self.keep_ends else None
        self.entries.append(JournalEntry(place, op, request, name, self._snapshot(state)))
        self.state = state
        self.reached = max(self.reached, self.generation)
        self.sent.update({f"{op}/{key}": size for key, size in sizes.items()})
        places = sorted({e.place for e in self.entries})[-ROUNDS_KEPT:]
        while self.entries[0].place < places[0]:
            gone = self.entries.pop(0)
            self.base, self.dropped = gone.after, (*gone.place, gone.op)
        self._write()
        self._clean()

    def reaches(self, place: Place) -> bool:
        """Tell whether the journal knows the state before a place."""
        return self.dropped is None or place > self.dropped[:2]

    def go_back(self, to: str) -> None:
        """Take the state of an earlier place, as a server's rollback names it; what came afterwards is forgotten."""
        task, rounds = read_place(to)
        kept = [e for e in self.entries if _is_within(e.place, e.op, task, rounds)]
        if self.dropped is None or _is_within(self.dropped[:2], self.dropped[2], task, rounds):
            self.entries = kept
        else:
            self._take_end(task, rounds, to)
        self.ends = {t: end for t, end in self.ends.items() if t < self.task}
        self.state = self._load(self.now)
        self.reached = self.generation
        self.rollbacks += 1
        self._write()
        self._clean()

    def _take_end(self, task: int, rounds: int | None, to: str) -> None:
        before = max((t for t in self.ends if t <= task), default=None)
        end = Snapshot() if before is None else self.ends[before]
        if end is None or rounds is not None:
            places = [f"{t + 1}:end" for t, kept in self.ends.items() if kept]
            known = ", ".join(places) or "no end of a task"
            raise PolicyError(
                f"the server went back to {to}, which is not kept here; kept: {known}, the last two rounds"
            )
        self.base, self.entries = end, []
        self.dropped = None if before is None else (before, LAST_ROUND, "")

    @property
    def _journal(self) -> Path:
        return self.folder / "journal.json"

    @property
    def _checked(self) -> Path:
        return self.folder / "journal.checked.json"

    def _snapshot(self, state: State) -> Snapshot:
        tensors: dict[str, str] = {}
        known: dict[str, tuple[Tensor, str]] = {}
        for key, value in state.items():
            if isinstance(value, Tensor):
                # Operations replace entries rather than write into them, so identity tells.
                kept = self._known.get(key)
                tensors[key] = kept[1] if kept is not None and kept[0] is value else self._put(pack({"value": value}))
                known[key] = (value, tensors[key])
        plain = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        self._known = known
        now = self.now
        changed = (plain, tensors) != (now.plain, now.tensors)
        return Snapshot(now.generation + changed, plain, tensors)

    def _put(self, packed: Packed, *, flush: bool = True) -> str:
        """Store a payload under its hash; one that is there is written again only if it was damaged."""
        data = encode(packed)
        name = hashlib.sha256(data).hexdigest()
        for path in (self.folder / "objects" / name, self.folder / COPIES / name)[: 1 + flush]:
            if path.exists() and path.read_bytes() == data:
                continue
            if flush:
                write_atomically(path, data)
            else:  # one that is cut off does not have its hash
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return name

    def _object(self, name: str) -> Packed | None:
        """Return what was stored under a hash; None if it is gone or damaged, and so is its copy."""
        for place in ("objects", COPIES):
            with contextlib.suppress(OSError, CodecError):
                data = (self.folder / place / name).read_bytes()
                if hashlib.sha256(data).hexdigest() == name:
                    return decode(data)
        return None

    def _tensor(self, name: str) -> Tensor | None:
        try:
            value = unpack(self._object(name) or Packed("[]", {})).get("value")
        except CodecError:
            return None
        return value if isinstance(value, Tensor) else None

    def _load(self, snapshot: Snapshot) -> State:
        state: State = dict(snapshot.plain)
        self._known = {}
        for key, name in snapshot.tensors.items():
            stored = self._tensor(name)
            if stored is None:
                return self._forget()
            state[key] = stored
            self._known[key] = (stored, name)
        return state

    def _forget(self) -> State:
        """Begin anew: with a part of the state gone, the rest would mean something else."""
        self.base, self.entries, self._known = Snapshot(), [], {}
        self.dropped, self.ends, self.reached = None, {}, 0
        return {}

    def _write(self) -> None:
        entries = [asdict(entry) for entry in self.entries]
        journal: dict[str, Any] = {"base": asdict(self.base), "entries": entries, "sent": dict(self.sent)}
        ends = {str(task): end and asdict(end) for task, end in self.ends.items()}
        further = {"dropped": self.dropped, "ends": ends, "rollbacks": self.rollbacks}
        journal |= {name: value for name, value in further.items() if value}
        write_json(self._checked, {"checksum": json_digest(journal), "journal": journal})
        write_json(self._journal, journal)

    def _last_journal(self) -> Any:
        """Return the journal with a checksum, or where that is damaged the other one."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            checked = json.loads(self._checked.read_text())
            if checked["checksum"] == json_digest(checked["journal"]):
                return checked["journal"]
        return json.loads(self._journal.read_text())

    def _read(self) -> None:
        try:
            journal = self._last_journal()
            self.base = Snapshot(**journal["base"])
            self.entries = [
                JournalEntry(**{**e, "place": (e["place"][0], e["place"][1]), "after": Snapshot(**e["after"])})
                for e in journal["entries"]
            ]
            self.sent = Counter(journal["sent"])
            dropped, ends = journal.get("dropped"), journal.get("ends", {})
            self.dropped = None if dropped is None else (dropped[0], dropped[1], dropped[2])
            self.ends = {int(task): end and Snapshot(**end) for task, end in ends.items()}
            self.rollbacks = journal.get("rollbacks", 0)
        except (OSError, ValueError, KeyError, TypeError):
            self._forget()

    def _clean(self) -> None:
        """Drop objects that nothing in the journal refers to."""
        states = (self.base, *(e.after for e in self.entries), *filter(None, self.ends.values()))
        needed = {h for state in states for h in state.tensors.values()}
        needed |= {e.reply for e in self.entries}
        for path in (*(self.folder / "objects").glob("*"), *(self.folder / COPIES).glob("*")):
            if path.name not in needed:
                path.unlink(missing_ok=True)


class UpdateAccount:
    """What a client counts over all runs, in ``account.json``: updates that left, and who it is in each run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "account.json"
        kept = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.updates: int = kept.get("updates", 0)
        self.clients: dict[str, int] = kept.get("clients", {})

    def add(self) -> None:
        """Count an update; it may leave when this returns."""
        self.updates += 1
        self._write()

    def client(self, run: str, asked: int) -> int:
        """Return which client this is in a run: whoever the first request took it for."""
        if run not in self.clients:
            self.clients[run] = asked
            self._write()
        return self.clients[run]

    def bytes(self) -> int:
        """Return how much is kept for servers."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _write(self) -> None:
        write_json(self.path, {"updates": self.updates, "clients": self.clients})


def _is_within(place: tuple[int, ...], op: str, task: int, rounds: int | None) -> bool:
    """Tell whether an exchange was over at the end of a task, or after so many of its rounds."""
    if rounds is None:
        return place[0] <= task
    # What is asked at the end of a task has the place of its last round, and comes after that round's checkpoint.
    return tuple(place) < (task, rounds - 1) or (tuple(place) == (task, rounds - 1) and op == TRAIN)
