"""THE loop: tasks, rounds and clients are walked here and nowhere else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfeat.algorithm.engine import Engine
from fedfeat.algorithm.method import Method
from fedfeat.algorithm.server import Server
from fedfeat.algorithm.settings import learning_rate
from fedfeat.algorithm.tables import Tables
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.config.config import Config
from fedfeat.core.errors import TrainingDiverged
from fedfeat.core.payload import SHARED, Payload, number_of
from fedfeat.federation.average import (
    Average,
    average,
    client_losses,
    fault_of,
    fault_of_state,
    mean_losses,
    with_momentum,
)
from fedfeat.federation.evaluation import gather_tables
from fedfeat.federation.exchange import Exchange, ExchangeOutcome
from fedfeat.federation.metrics import after_task
from fedfeat.federation.progress import Progress
from fedfeat.federation.robust import joined
from fedfeat.federation.secure.exchange import JOINED, SummedExchange
from fedfeat.scenario import Scenario

Event = dict[str, Any]
Listener = Callable[[Event], None]
Saver = Callable[[Progress], bool]  # says whether it wrote a checkpoint
PREVIOUS_MODEL, VELOCITY = "previous_model", "server_velocity"
log = logging.getLogger("fedfeat.server")


class Federation:
    """One experiment at work; ``run`` takes it from wherever ``progress`` stands to the end."""

    def __init__(
        self,
        config: Config,
        scenario: Scenario,
        method: Method,
        engine: Engine,
        progress: Progress,
        *,
        folder: Path | None = None,
    ) -> None:
        self.config, self.scenario, self.method, self.engine = config, scenario, method, engine
        self.progress = progress
        engine.shared, engine.deferred = progress.shared, progress.deferred
        self.folder = folder
        self.saved = _position(progress) if len(progress.weights) else ""  # where a resumed run would go on
        self.remote = config.engine.name == "flower"  # clients are strangers
        self.exchange = self._new_exchange()

    def _new_exchange(self) -> Exchange:
        config, traffic = self.config, self.progress.traffic
        if config.privacy.secure_aggregation:
            if not self.remote:
                return SummedExchange(self.engine, config, traffic)
            from fedfeat.federation.secure.masked_exchange import MaskedExchange  # needs the extra 'flower'

            assert self.folder is not None, "a federation has a run folder"
            return MaskedExchange(self.engine, config, traffic, self.folder / "secure")
        robust = config.train.robust != "none"
        join = partial(joined, sends=self.method.sends, settings=config.train) if robust else None
        return Exchange(self.engine, traffic, quorum=config.federation.quorum, join=join)

    def run(self, emit: Listener, save: Saver) -> None:
        """Walk tasks and rounds; ``emit`` hears of everything, ``save`` may write a checkpoint."""
        now = self.progress
        resumed = len(now.weights) > 0
        if resumed:
            self.engine.begin_task(now.task)
            self.engine.round = max(now.round - 1, 0)  # the end of a task belongs to its last round
        for task in range(now.task + now.finished, self.scenario.num_tasks):
            # 1. A new task: heads grow, clients meet new classes.
            if task != now.task or not resumed:
                self._begin(task)
            for round in range(now.round, self.method.rounds(self.config.train.rounds)):
                # 2. Participants train the global model on what they hold.
                started, sent = time.perf_counter(), self._bytes()
                self.engine.round = round
                clients = [int(k) for k in self.scenario.participants(task, round)]
                replies = self.exchange("train", self._requests(clients, round))
                # 3. The server averages their weights and joins their statistics.
                result = average(replies, self.config.train.aggregation)
                outcome = self._note_outcomes(task, round)[0]
                self._refuse_divergence(result, outcome, task, round)
                self._deliver(outcome.replied)
                left = self._take_or_leave(result)
                now.round = round + 1
                now.seconds += time.perf_counter() - started
                emit(self._round_event(result, outcome, started, sent) | left)
                self._save(save)
            self._choose_model()
            # 4. What stays of the task, and what is made for the next one.
            for step in self.method.task_end_steps():
                if step.after_last or task + 1 < self.scenario.num_tasks:
                    step.at_task_end(self._task_end(task))
            self._note_outcomes(task, now.round - 1)
            # 5. The global model on all classes seen so far, without and with the correction.
            now.tables.append(self._tables(task))
            now.finished = True
            emit(self._task_event(task))
            self._save(save)

    def _save(self, save: Saver) -> None:
        if save(self.progress):
            self.saved = _position(self.progress)

    def _tables(self, task: int) -> Tables:
        now = self.progress
        if not self.engine.dataset.private:
            return self.engine.evaluate(now.weights, now.known)
        tables = gather_tables(self.exchange, self.scenario.present(task), self.engine, now.weights, now.known)
        self._note_outcomes(task, now.round - 1)
        return tables

    def _begin(self, task: int) -> None:
        now = self.progress
        earlier = now.weights
        now.weights = self.engine.begin_task(task, earlier if task > 0 else None)
        now.task, now.round, now.finished = task, 0, False
        now.best_loss, now.best_weights, now.best_numbers = float("inf"), None, {}
        if self.method.keeps_previous_model and task > 0:
            now.share(PREVIOUS_MODEL, earlier)

    def _requests(self, clients: list[int], round: int) -> dict[int, Payload]:
        now = self.progress
        common: Payload = {"weights": now.weights}
        for step in self.method.server_steps:
            common |= step.broadcast(self._server())
        requests = {k: dict(common) for k in clients}
        for name, value in now.shared.items():
            # The model that a task ends with is the one that its successor starts from: it comes with the weights.
            if round == 0 and name == PREVIOUS_MODEL:
                continue
            for client in set(clients) - now.delivered[name]:
                requests[client][SHARED + name] = value
        return requests

    def _deliver(self, clients: Iterable[int]) -> None:
        """Note who has the shared tensors now: whoever replied to the request that brought them."""
        now = self.progress
        for name in now.shared:
            now.delivered[name] |= set(clients)

    def _note_losses(self, where: Mapping[str, int]) -> None:
        """Note who lost its state: it has none of the shared tensors any more, and no exemplars."""
        for holders in self.progress.delivered.values():
            holders -= self.engine.lost_state
        left = self.engine.exemplars() if self.engine.lost_state else 0
        self.progress.lost_states += [
            {**where, "client": client, "exemplars": left} for client in sorted(self.engine.lost_state)
        ]
        self.engine.lost_state.clear()

    def _note_outcomes(self, task: int, round: int) -> list[ExchangeOutcome]:
        """Keep a record of exchanges that not every asked client answered, and of states that were lost."""
        where = {"task": task + 1, "round": round + 1}
        self._note_losses(where)
        outcomes = self.exchange.take_outcomes()
        self.progress.shortfalls += [
            {**where, "op": o.op, "clients": o.asked, **o.record()} for o in outcomes if not o.whole
        ]
        return outcomes

    def _refuse_divergence(self, result: Average, outcome: ExchangeOutcome, task: int, round: int) -> None:
        """Stop before anything is taken from a round that diverged: the checkpoint before it stays the last one."""
        if not self.config.run.stop_on_divergence:
            return
        fault = None if self.remote else fault_of(result)  # what strangers send is screened, and their round left
        if fault is None and not result.replies and any(lost.diverged for lost in outcome.lost.values()):
            fault = "no reply is left, and those that came had losses or weights that are not finite"
        if fault is None:
            return
        switch = "run.stop_on_divergence = false"
        if self.folder is not None:
            then = f"continues {self.saved}" if self.saved else "begins anew, since no checkpoint was written yet"
            switch += f" in {self.folder / 'config.toml'} and resume the run, which {then}"
        raise TrainingDiverged(
            f"training diverged in task {task + 1}, round {round + 1}: {fault}; start a new run with a lower train.lr "
            f"(now {self.config.train.lr:g}) or a smaller weight of the term, or go on all the same: set {switch}"
        )

    def _take_or_leave(self, result: Average) -> Event:
        """Take a round; one of strangers that leads to no usable model is thrown away, and the event says why."""
        now = self.progress
        if not self.remote:
            self._take(result)
            return {}
        before = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(now).items()}
        try:
            self._take(result)
            fault = fault_of_state(now)
        except Exception as error:
            log.info("a round cannot be used", exc_info=True)
            fault = f"{type(error).__name__}: {error}"
        if fault is None:
            return {}
        vars(now).update(before)
        self.engine.shared = now.shared
        log.warning("round %d of task %d is thrown away: %s", now.round + 1, now.task + 1, fault)
        return {"discarded": fault}

    def _take(self, result: Average) -> None:
        now = self.progress
        replies = list(result.replies.values())
        now.images_trained += result.samples * self.config.train.local_epochs
        best = False
        if self.config.train.model_selection == "lowest_train_loss" and replies:
            # The mean, not the sum: fewer replies do not make a better model.
            loss = sum(number_of(r, "loss.first_epoch") for r in replies) / len(replies)
            best = loss < now.best_loss
            if best:
                now.best_loss, now.best_weights, now.best_numbers = loss, now.weights, dict(now.numbers)
        if result.weights is not None:
            now.weights = self._moved(result.weights)
        for statistic in self.method.statistics:
            now.numbers.update(statistic.reduce(replies))
        if best and now.round == 0:
            now.best_numbers = dict(now.numbers)  # what was known before is of another task, with other classes
        for step in self.method.server_steps:
            step.after_round(self._server(), result.replies)
        self._join_last_rounds()

    def _moved(self, average: Tensor) -> Tensor:
        """Return the model that follows an average; with momentum it goes on in the direction of earlier rounds."""
        now, momentum = self.progress, self.config.train.server_momentum
        if not momentum:
            return average
        weights, now.tensors[VELOCITY] = with_momentum(
            now.weights,
            average,
            now.tensors.get(VELOCITY),
            momentum=momentum,
            num_trainable=self.engine.model.num_trainable,
        )
        return weights

    def _join_last_rounds(self) -> None:
        """Take this round's model, running statistics included, into the mean of the task's last ones."""
        now, train = self.progress, self.config.train
        number = now.round + 1 - max(train.rounds - train.mean_rounds, 0)  # of this model among those that are joined
        if train.model_selection != "mean" or number < 1:
            return
        earlier = now.weights if now.best_weights is None else now.best_weights
        now.best_weights, now.best_numbers = torch.lerp(earlier, now.weights, 1 / number), dict(now.numbers)

    def _server(self) -> Server:
        seen = self.engine.seen
        return Server(
            progress=self.progress,
            model=self.engine.model,
            frozen=self.engine.frozen,
            images=self.engine.test_images,
            seen=seen,
            seed=self.config.seed,
            settings=self.config.train,
            num_clients=self.config.scenario.clients,
            class_names=self.engine.class_names[: seen.num_classes],
            folder=self.folder,
            repeat=self.engine.repeat,
        )

    def _choose_model(self) -> None:
        self.progress.tensors.pop(VELOCITY, None)
        if self.progress.best_weights is not None:
            self.progress.weights = self.progress.best_weights
            self.progress.numbers = dict(self.progress.best_numbers)

    def _task_end(self, task: int) -> TaskEnd:
        asked = self.scenario.asked_at_end(task, self.method.rounds(self.config.train.rounds))
        quotas = self.scenario.quotas(task, asked)
        return TaskEnd(
            exchange=self.exchange,
            task=task,
            num_new=len(self.scenario.task_classes[task]),
            weights=self.progress.weights,
            quotas=dict(zip(asked.tolist(), quotas[asked].tolist(), strict=True)),
            shares_budget=self.config.scenario.budget_scope == "global_per_task",
            seed=self.config.seed,
            server=self._server(),
        )

    def _bytes(self) -> tuple[int, int]:
        return self.exchange.traffic.total("up"), self.exchange.traffic.total("down")

    def _round_event(self, result: Average, outcome: ExchangeOutcome, started: float, sent: tuple[int, int]) -> Event:
        seconds = time.perf_counter() - started
        up, down = self._bytes()
        return {
            "event": "round",
            "task": self.progress.task + 1,
            "round": self.progress.round,
            "clients": outcome.asked,
            **outcome.record(),
            "samples": result.samples,
            "lr": learning_rate(self.config.train, self.progress.round - 1),
            "losses": mean_losses(list(result.replies.values())),
            "client_losses": client_losses({k: r for k, r in result.replies.items() if k != JOINED}),
            "numbers": dict(self.progress.numbers),
            "bytes_up": up - sent[0],
            "bytes_down": down - sent[1],
            "seconds": seconds,
            "images_per_second": result.samples * self.config.train.local_epochs / seconds,
            **self.engine.account(),
        }

    def _task_event(self, task: int) -> Event:
        numbers = after_task(self.progress.tables[task], self.scenario.test_rows[: task + 1])
        return {"event": "task", "task": task + 1, **numbers, "exemplars": self.engine.exemplars()}


def _position(progress: Progress) -> str:
    return f"in task {progress.task + 1} after round {progress.round}"
