"""A client of a federation: its data, its engine and its store, behind two questions, ``hello`` and ``ask``.

The configuration comes from the server; the images are opened here and stay here.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedfeat
from fedfeat.algorithm.client import EXEMPLARS
from fedfeat.algorithm.engine import Lost
from fedfeat.algorithm.sent import Sent
from fedfeat.config.config import Config, differing_keys
from fedfeat.core.audit import AUDIT, AuditLog
from fedfeat.core.errors import FedfeatError, Refusal, one_line
from fedfeat.core.files import remove_leftovers, write_json
from fedfeat.core.payload import SHARED, Payload, State, moved, tensor_of, value_bytes
from fedfeat.data import fingerprint
from fedfeat.data.owned import held_classes
from fedfeat.data.settings import OWNED
from fedfeat.engines.base import frozen_model
from fedfeat.engines.flower.client_data import check_unchanged, open_data, read_secret
from fedfeat.engines.flower.codec import Packed, pack, unpack
from fedfeat.engines.flower.messages import PROTOCOL, Header, config_received
from fedfeat.engines.flower.policy import ClientPolicy, PolicyError
from fedfeat.engines.flower.store import Snapshot, Store, UpdateAccount
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.evaluation import EVALUATE, HELD, SENDS, evaluation_on
from fedfeat.federation.privacy import in_words
from fedfeat.federation.secure.client import SecureClient, phase_of
from fedfeat.federation.secure.signing import Identity
from fedfeat.federation.secure.sums import Sums

PREVIOUS_MODEL = SHARED + "previous_model"
log = logging.getLogger("fedfeat.client")


@dataclass(frozen=True)
class ClientSettings:
    """What the owner of a client decides."""

    folder: Path  # where the client keeps its state
    name: str
    client: int | None = None  # which of the scenario's clients this is; None lets the server choose
    device: str = "auto"
    threads: int | None = None  # None takes the server's setting
    plugins: tuple[str, ...] = ()
    model: str | None = None  # folder of a pre-trained backbone; None takes the server's path
    policy: ClientPolicy = field(default_factory=ClientPolicy)  # what may leave, whatever the server asks
    key: Path | None = None  # by which the server knows it, and its peers in masked sums

    def engine(self) -> dict[str, Any]:
        """Return the engine table of this machine."""
        threads = {} if self.threads is None else {"threads": self.threads}
        return {"name": "inprocess", "device": self.device, **threads}


class FederationClient:
    """One client; it may take part in one run after another, and keeps each run's memory apart."""

    def __init__(self, settings: ClientSettings, data: Path | None) -> None:
        self.settings, self.data = settings, data
        self.run: ClientRun | None = None  # the one that is open
        self.audit = AuditLog(settings.folder / AUDIT)

    def hello(self, header: Header) -> Header:
        """Say who this is; the run that the server names is opened and stays open."""
        if header.get("protocol") != PROTOCOL:
            reason = (
                f"the server speaks protocol {header.get('protocol')} and this client {PROTOCOL}; "
                "install the same version of fedfeat on both"
            )
            log.error("cannot take part: %s", reason)
            return {"name": self.settings.name, "refused": reason}
        try:
            self._accept(header)
            run = self._open_run(header["run"], reopen=True)
            run.go_back(header.get("rollbacks", []))
            self._log_what_leaves(run)
        except Exception as error:
            self.audit.note("run refused", run=header.get("run"), reason=error)
            return {"name": self.settings.name, "refused": self._reason("cannot take part", header, error)}
        self.audit.note("run accepted", run=run.name, method=run.config.method)
        return {
            "name": self.settings.name,
            "client": self.settings.client,
            "data": run.fingerprint,
            "backbone": run.engine.network.backbone.fingerprint,
            "fedfeat": fedfeat.__version__,
            "torch": torch.__version__,
            "classes": held_classes(run.dataset) if run.dataset.private else None,
            **run.summary(),
        }

    def _accept(self, header: Header) -> None:
        """Keep what the server says a run is; later it may not say otherwise, nor go beyond the policy."""
        path, table = self._folder(header["run"]) / "config.json", json.loads(json.dumps(header["config"]))
        self.settings.policy.check_run(self._received(table))
        if path.exists():
            before = json.loads(path.read_text())
            if changed := [key for key in differing_keys(before, table) if not key.startswith("engine.")]:
                raise PolicyError(f"the server changed settings of a run that has begun ({', '.join(changed):.200})")
        write_json(path, table)

    def _received(self, table: Any) -> Config:
        own = self.settings
        return config_received(table, engine=own.engine(), plugins=list(own.plugins), model=own.model)

    def ask(self, header: Header, request: Packed) -> tuple[Header, Packed]:
        """Answer one operation; whatever goes wrong is part of the answer."""
        asked = {name: header.get(name) for name in ("run", "op")}
        asked |= {name: n + 1 for name in ("task", "round") if isinstance(n := header.get(name), int)}
        try:
            told, answer = self._open_run(header["run"]).answer(header, request)
            self.audit.note("answered", **asked, bytes=sum(map(len, answer.buffers.values())), again="again" in told)
            return told, answer
        except Exception as error:
            self.audit.note("request refused", **asked, reason=error)
            if not isinstance(error, Refusal):
                self.run = None  # what an operation left behind when it broke off is not to be trusted
            return {"failed": self._reason(f"{header.get('op')} failed", header, error)}, pack({})

    def _reason(self, what: str, header: Header, error: Exception) -> str:
        """Log an error in full and return what the server may know of it: paths and private files stay here."""
        kind, lines = type(error).__name__, str(error).splitlines()
        ours = isinstance(error, FedfeatError)
        whole = str(error) if ours else f"{kind}: {lines[0] if lines else ''}"
        log.error("%s: %s", what, whole, exc_info=None if ours else error)
        hidden = not isinstance(error, Refusal) and (self._owns_data(header) or re.search(r"[/\\]", whole))
        return f"{kind}: see the client's log" if hidden else one_line(whole)

    def _owns_data(self, header: Header) -> bool:
        """Tell whether a run is on images of the client's own; what cannot be read is taken for one."""
        try:
            path = self._folder(header["run"]) / "config.json"
            return path.exists() and json.loads(path.read_text())["data"]["name"] == OWNED
        except Exception:
            return True

    def _open_run(self, name: str, *, reopen: bool = False) -> ClientRun:
        if self.run is None or self.run.name != name or reopen:
            folder = self._folder(name)
            if not (folder / "config.json").exists():
                raise FedfeatError(f"run {name} is unknown here: the server has to say hello first")
            table = json.loads((folder / "config.json").read_text())
            if self.run is not None and (self.run.name, self.run.table) == (name, table):
                return self.run
            config = self._received(table)
            self.settings.policy.check_run(config)
            remove_leftovers(folder)
            self.run = ClientRun(folder, table, config, self.data, self.settings)
        return self.run

    def _folder(self, run: str) -> Path:
        if not run.isalnum():
            raise FedfeatError(f"the run's name {run!r} should consist of letters and digits")
        return self.settings.folder / run

    def _log_what_leaves(self, run: ClientRun) -> None:
        log.info("%s: run %s, method %s", self.settings.name, run.name, run.config.method)
        log.info("leaves this client: model weights, number of samples, training losses, number of exemplars")
        log.info("updates of weights: %s", in_words(run.config.privacy))
        if run.secure is not None:
            log.info("masked, so that the server learns sums of %d clients or more: all but", run.secure.sums.fewest)
            log.info("the number of exemplars, and what is told once when a run begins")
        for name, sent in run.sends().items():
            log.info("leaves this client: %s: %s", name, sent.words)


class ClientRun:
    """A client's part in one run."""

    def __init__(self, folder: Path, table: Any, config: Config, data: Path | None, settings: ClientSettings) -> None:
        self.name, self.table, self.config, self.policy = folder.name, table, config, settings.policy
        self.account = UpdateAccount(settings.folder)
        self.store = Store(folder / "store", keep_ends=self.policy.most_rollbacks > 0)
        self.dataset, self.scenario = open_data(data, config)
        if self.dataset.private:
            check_unchanged(self.store.folder, self.dataset, self.scenario, self.store.task)
        self.fingerprint = fingerprint(self.dataset)
        self.engine = self._new_engine()
        self.secure: SecureClient | None = None
        if config.privacy.secure_aggregation:
            sums = Sums(config, self.engine.method, private=self.dataset.private)
            identity = Identity(settings.key, self.policy.peers)
            self.secure = SecureClient(self.store.folder / "secure", sums, identity)

    def summary(self, snapshot: Snapshot | None = None) -> Header:
        """Return what the server may know of a state: how often it changed, and how many exemplars it holds."""
        snapshot = snapshot or self.store.now
        kept = self.store.tensor(snapshot, EXEMPLARS)
        return {"generation": snapshot.generation, "exemplars": 0 if kept is None else len(kept)}

    def go_back(self, rollbacks: list[str]) -> None:
        """Follow a server that went back to earlier places, if the policy allows it."""
        new = rollbacks[self.store.rollbacks :]
        if not new:
            return
        self.policy.check_rollbacks(len(rollbacks))
        for to in new:
            self.store.go_back(to)
            log.info("the server went back to %s, and so did this client", to)

    def answer(self, header: Header, packed: Packed) -> tuple[Header, Packed]:
        """Return the reply: from memory if this request was answered before, by running the operation otherwise."""
        place, op, digest = (header["task"], header["round"]), header["op"], packed.digest()
        self._check_place(header, digest)
        stored = self.store.answered(place, op, digest)
        if stored is not None:
            log.info("task %d round %d, %s: answered before, sent again", place[0] + 1, place[1] + 1, op)
            # The state of that moment: if the server's next request differs, the work goes on from there.
            return {**self.summary(self.store.after(place, op)), "seconds": 0.0, "again": True}, stored
        if header["generation"] > self.store.reached:
            reason = f"its state is lost: change {header['generation']} expected, {self.store.reached} found"
            return {**self.summary(), "failed": reason, "forgot": True}, pack({})
        size = sum(map(len, packed.buffers.values()))
        self.policy.check_request(op.partition(".")[0], self.account.bytes() + size, self.account.updates)
        started = time.perf_counter()
        reply, state = self._worked_on(header, unpack(packed), digest)
        seconds = time.perf_counter() - started
        answer = pack(reply)
        sizes = {key: value_bytes(value) for key, value in reply.items()}
        if op == "train":
            self.account.add()
        self.store.commit(place, op, digest, answer, state, sizes)
        told = ", ".join(f"{key} {size:,} B" for key, size in sizes.items()) or "nothing"
        log.info("task %d round %d, %s: %.2f s, sent %s", place[0] + 1, place[1] + 1, op, seconds, told)
        return {**self.summary(), "seconds": seconds}, answer

    def _check_place(self, header: Header, digest: str) -> None:
        """Refuse a place that the run does not have, another client's id, and what was answered before otherwise."""
        place, op = (header["task"], header["round"]), header["op"]
        if not (0 <= place[0] < self.scenario.num_tasks and 0 <= place[1] < self.config.train.rounds):
            raise PolicyError(f"the run has no task {place[0] + 1} with a round {place[1] + 1}")
        if not self.store.reaches(place):
            raise PolicyError(
                f"{op!r:.40} of task {place[0] + 1}, round {place[1] + 1} lies before what this client keeps; a server "
                "goes back with 'fedfeat rollback', if the client's policy allows it"
            )
        if not self.policy.one_answer:
            return
        if self.account.client(self.name, header["client"]) != header["client"]:
            raise PolicyError(f"policy: this client is not client {header['client']} of the run")
        if not self.store.may_answer(place, op, digest):
            raise PolicyError(
                f"policy: {op!r:.40} of task {place[0] + 1}, round {place[1] + 1} was answered, and another request "
                "came; each is answered once"
            )

    def _worked_on(self, header: Header, request: Payload, digest: str) -> tuple[Payload, State]:
        """Return what may leave: the operation's reply, under its masks where it belongs to a sum, or a phase's."""
        if self.secure is not None and phase_of(header["op"])[1]:
            return self.secure.answer(header, request, digest), self.store.state
        reply, state = self.run_op(header, request)
        self.policy.check_reply(header["op"], reply, len(self.scenario.samples(header["task"], header["client"])))
        if self.secure is not None:
            layout = self.secure.sums.layout(header["op"], request, self.engine.reply_sizes(header["client"]))
            reply = self.secure.masked(header, request, digest, reply, layout)
        return reply, state

    def run_op(self, header: Header, request: Payload) -> tuple[Payload, State]:
        """Run an operation on the client's state; the store's own is left as it is."""
        client, engine = header["client"], self._engine_at(header["task"], header["round"])
        state = dict(self.store.state) | {k: v for k, v in request.items() if k.startswith(SHARED)}
        starts_task = header["op"] == "train" and header["round"] == 0 and header["task"] > 0
        if starts_task and engine.method.keeps_previous_model:
            state[PREVIOUS_MODEL] = before_growth(engine, tensor_of(request, "weights")).cpu()
        engine.shared = {
            k.removeprefix(SHARED): v.to(engine.device)
            for k, v in state.items()
            if k.startswith(SHARED) and isinstance(v, Tensor)
        }
        engine.restore({client: {k: v for k, v in state.items() if not k.startswith(SHARED)}})
        ((_, reply),) = engine.ask(header["op"], {client: moved(request, engine.device)})
        if isinstance(reply, Lost):
            raise FedfeatError(reply.reason)
        kept = {k: v for k, v in state.items() if k.startswith(SHARED)}
        return reply, kept | _on_cpu(engine.states.get(client, {}), self.store.state)

    def _engine_at(self, task: int, round: int) -> InProcessEngine:
        if task < self.engine.task:
            self.engine = self._new_engine()  # heads only grow: the server went back to an earlier task
        if task > self.engine.task:
            self.engine.begin_task(task)
        self.engine.round = round
        return self.engine

    def _new_engine(self) -> InProcessEngine:
        engine = InProcessEngine(self.config, self.dataset, self.scenario, self.config.build_method())
        if self.dataset.private:
            engine.ops[EVALUATE], engine.secret = evaluation_on(engine), read_secret(self.store.folder)
        return engine

    def sends(self) -> dict[str, Sent]:
        """Return what leaves this client besides weights, losses and counts."""
        return {**self.engine.method.sends, **({**HELD, **SENDS} if self.dataset.private else {})}


def before_growth(engine: InProcessEngine, weights: Tensor) -> Tensor:
    """Return the model that the previous task ended with, given the one that this task starts from."""
    engine.model.load(weights)
    earlier = frozen_model(engine.new_network(), engine.scenario, engine.task - 1)
    grown = engine.model.named_values()
    for name, value in earlier.named_values().items():
        value.copy_(grown[name][: len(value)] if value.dim() else grown[name])
    return earlier.vector


def _on_cpu(state: State, before: State) -> State:
    """Return a state for the disk; entries that did not change stay the very same objects."""
    return {k: before[k] if k in before and _equal(before[k], v) else v for k, v in moved(state, "cpu").items()}


def _equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b))
