"""Many small clients trained at once, with the results of training them one by one.

A small network on a small batch leaves a GPU idle: the time goes into launching its kernels. Here the clients of a
round are rows of a stack, and one launch serves all of them. Each sees its own batches, drawn from their own address,
in its own order and of their own size.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfeat.algorithm.client import EXEMPLARS, Client
from fedfeat.algorithm.method import ActiveParts
from fedfeat.algorithm.settings import learning_rate
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import SHARED, Payload, tensor_of
from fedfeat.data.augment import EpochPlan
from fedfeat.engines.base import BaseEngine
from fedfeat.engines.grouping import FEWEST_CLIENTS, SMALL_STEP, even_parts, pays, plan_rows, plan_steps
from fedfeat.engines.stack import CapturedStack, Convolutions, Stack
from fedfeat.federation.training import LocalTraining, plan_batches, training_reply
from fedfeat.models import PretrainedBackbone

OFF = 1  # value of ``engine.vectorised`` that trains clients one by one
COPIES = 8  # of a client's vector: kept, at work, as leaves, as gradients, as velocity, and what lies between


class VectorisedClients:
    """An engine's way to train many small clients at once; ``takes`` says when, ``train`` does it."""

    def __init__(self, engine: BaseEngine, convolutions: Convolutions | None = None) -> None:
        self.engine, self.convolutions = engine, convolutions
        self._stack: Stack | None = None
        self._planned: dict[int, int] = {}  # clients at once, by task
        self._step_bytes: dict[int, int | None] = {}  # by task; None where terms cannot be stacked

    def takes(self, requests: Mapping[int, Payload]) -> bool:
        """Return whether these clients should be trained at once: by the user's choice, or where it pays."""
        engine, wanted = self.engine, self.engine.config.engine.vectorised
        # A training op that somebody wrapped, say to let clients drop out, has to be called.
        if wanted == OFF or not isinstance(engine.ops["train"], LocalTraining) or not engine.method.steps_alike:
            return False
        if engine.scenario.lags.any():  # other classes are old for other clients
            return False
        if not engine.train_images.resident:
            return False  # captured steps read images on the device
        samples = [n for k in requests if (n := self._samples(k))]
        # Attention has no kernel for a stack of models, so a transformer is stacked only if asked for.
        worth_a_look = len(samples) >= FEWEST_CLIENTS and engine.device.type in SMALL_STEP
        worth_a_look = worth_a_look and not isinstance(engine.network.backbone, PretrainedBackbone)
        if len(samples) < 2 or not (wanted or worth_a_look):
            return False
        step_bytes = self.step_bytes(requests)
        if step_bytes is None:
            return False
        return bool(wanted) or pays(engine.device.type, samples, engine.config.train.batch, step_bytes)

    def train(self, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """Train clients and yield their replies in the order of ids; a reply's vector is valid until the next part."""
        self.step_bytes(requests)  # planned with before anything needs memory
        for part in even_parts(sorted(requests), self.rows()):
            try:
                cohort = Cohort(self._stack_for(len(part)), self.engine, part, requests)
                cohort.train()
            except torch.cuda.OutOfMemoryError:
                self._shrink(len(part))
                yield from self.train({k: requests[k] for k in part})
                continue
            yield from cohort.replies()

    def step_bytes(self, requests: Mapping[int, Payload]) -> int | None:
        """Return what one client's step keeps for its backward pass, or None if a loss term cannot be stacked."""
        engine, task = self.engine, self.engine.task
        if task not in self._step_bytes:
            stack = Stack(engine, 2, self._longest(), self.convolutions)
            some = max(sorted(requests), key=self._samples)
            method = replace(engine.method, statistics=())
            stack.bind([ActiveParts.start(method, engine.client(some), requests[some])] * 2)
            try:
                self._step_bytes[task] = stack.step_bytes()
            except RuntimeError as error:
                self._step_bytes[task] = None
                reason = str(error).split("\n")[0]
                warnings.warn(f"clients train one by one: a loss term cannot be stacked ({reason})", stacklevel=2)
        return self._step_bytes[task]

    def rows(self) -> int:
        """Return how many clients to train at once in this task, planned before its first ones need memory."""
        engine = self.engine
        if engine.task not in self._planned:
            each = 2 * (self._step_bytes.get(engine.task) or 0) + COPIES * engine.model.vector.nbytes
            self._planned[engine.task] = plan_rows(engine.config.engine.vectorised, _free_bytes(engine.device), each)
        return self._planned[engine.task]

    def _shrink(self, rows: int) -> None:
        if rows == 1:
            raise ConfigError("engine.vectorised: the device has no memory for one client; lower train.batch") from None
        self._stack = None
        self._planned[self.engine.task] = fewer = -(-rows // 2)
        torch.cuda.empty_cache()
        warnings.warn(f"memory ran out; at most {fewer} clients of this task are trained at once", stacklevel=2)

    def _stack_for(self, rows: int) -> Stack:
        """Return a stack of this task with enough rows; it is kept, with what it captured, until the task ends."""
        stack = self._stack
        if stack is None or stack.model is not self.engine.model or stack.rows < rows:
            self._stack = None  # its memory is free before the next one is made
            kind = CapturedStack if self.engine.device.type == "cuda" else Stack
            stack = self._stack = kind(self.engine, rows, self._longest(), self.convolutions)
        return stack

    def _longest(self) -> int:
        """Return the most samples that a client of this task trains on in a round."""
        return self.engine.largest_local_set() * self.engine.config.train.local_epochs

    def _samples(self, client: int) -> int:
        self.engine.settle(client)
        kept = self.engine.states.get(client, {}).get(EXEMPLARS)
        own = len(self.engine.scenario.samples(self.engine.task, client))
        repeated = self.engine.config.train.repeat_exemplars
        return own + (repeated * len(kept) if isinstance(kept, Tensor) else 0)


class Cohort:
    """The local training of several clients, each in its row of a stack."""

    def __init__(self, stack: Stack, engine: BaseEngine, ids: Sequence[int], requests: Mapping[int, Payload]) -> None:
        self.stack, self.engine, self.ids = stack, engine, ids
        self.requests = [{n: v for n, v in requests[k].items() if not n.startswith(SHARED)} for k in ids]
        clients = [engine.client(k) for k in ids]
        sets = [c.local_set for c in clients]
        self.at_work = [i for i, local_set in enumerate(sets) if len(local_set)]
        self.clients = [clients[i] for i in self.at_work]
        self.sets = [sets[i] for i in self.at_work]
        self.before = [dict(c.state) for c in self.clients]
        self.parts = [self._start(c, self.requests[i]) for c, i in zip(self.clients, self.at_work, strict=True)]

    def train(self) -> None:
        """Do every step; the host waits for none."""
        if not self.clients:
            return
        self._load()
        stack, settings = self.stack, self.engine.config.train
        steps = plan_steps([len(s) for s in self.sets], settings.batch, settings.local_epochs)
        members = torch.tensor([m for step in steps for m in step.members], device=self.engine.device)
        try:
            for step, rows in zip(steps, torch.split(members, [len(s.members) for s in steps]), strict=True):
                stack.take(step.size, rows, whole=len(rows) == len(self.clients))
        except Exception as error:
            where = f"task {self.engine.task + 1}, round {self.engine.round + 1}"
            error.add_note(f"while clients {', '.join(str(k) for k in self.ids)} trained at once in {where}")
            raise

    def replies(self) -> Iterator[tuple[int, Payload]]:
        """Yield what each client answers, in the order of ids."""
        sums = self.stack.sums.cpu()  # at once, instead of waiting for each client's
        rows = {self.ids[place]: row for row, place in enumerate(self.at_work)}
        for client_id in self.ids:
            row = rows.get(client_id)
            yield client_id, {"samples": 0} if row is None else self._reply(row, sums[row])

    def _reply(self, row: int, sums: Tensor) -> Payload:
        client, method, vector = self.clients[row], self.engine.method, self.stack.vectors[row]
        if method.statistics:
            client.model.load(vector)
        terms = [term.name for term in method.active_terms(client.task)]
        reply = training_reply(client, self.requests[self.at_work[row]], self.parts[row], vector, terms, sums)
        self.engine.note_state(client.id, self.before[row], client.state)
        return reply

    def _start(self, client: Client, request: Payload) -> ActiveParts:
        """Start the method's statistics on the weights that the client received."""
        if self.engine.method.statistics:
            client.model.load(tensor_of(request, "weights"))
        return ActiveParts.start(self.engine.method, client, request)

    def _load(self) -> None:
        """Put weights and plans of all epochs into the stack: a handful of copies, however many clients there are."""
        stack, count = self.stack, len(self.clients)
        received = [tensor_of(self.requests[i], "weights") for i in self.at_work]
        stack.vectors[:] = received[0]
        if any(r is not received[0] for r in received):
            stack.vectors[:count] = torch.stack(received)
        for buffer in (stack.velocity, stack.cursor, stack.sums):
            buffer.zero_()
        stack.bind(self.parts)
        stack.lr.fill_(learning_rate(self.engine.config.train, self.engine.round))
        device = self.engine.device
        stack.samples[:count] = torch.tensor([len(s) for s in self.sets], device=device)
        plans = [self._plan(row) for row in range(count)]
        order, *rest = (_side_by_side(rows, stack.longest).to(device) for rows in zip(*plans, strict=True))
        starts = torch.tensor([0, *(len(s) for s in self.sets[:-1])], device=device).cumsum(0)
        stack.order[:count] = torch.cat(self.sets)[order + starts[:, None]]
        for buffer, values in zip((stack.crops, stack.flips, stack.brightness, stack.changes), rest, strict=True):
            buffer[:count] = values

    def _plan(self, row: int) -> EpochPlan:
        """Return the order and augmentation of all epochs of a client, one after another."""
        client = self.clients[row]
        epochs = [plan_batches(client, epoch) for epoch in range(client.settings.local_epochs)]
        return EpochPlan(*(torch.cat(parts) for parts in zip(*epochs, strict=True)))


def _side_by_side(rows: Sequence[Tensor], longest: int) -> Tensor:
    """Return rows of different lengths as one tensor [rows, longest, ...], with zeros behind them."""
    joined = rows[0].new_zeros(len(rows), longest, *rows[0].shape[1:])
    for place, row in enumerate(rows):
        joined[place, : len(row)] = row
    return joined


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
