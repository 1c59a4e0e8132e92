"""What finished runs know: test images through the model of a task, and through clients' models of that task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.client import EXEMPLARS
from fedfeat.config.settings import EngineSettings
from fedfeat.core.errors import FedfeatError
from fedfeat.core.payload import Payload, State
from fedfeat.data import load_dataset
from fedfeat.engines.base import choose_device
from fedfeat.models import ETFHead, FlatModel
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.sweep import RunOutcome
from fedfeat.runs.trained import Trained, load_trained

BATCH = 256


class ModelView(NamedTuple):
    """Test images of the classes seen up to a task, and what the global model of that task makes of them."""

    trained: Trained
    images: Tensor  # uint8 [N, H, W, C]
    labels: Tensor  # [N], in order of arrival
    features: Tensor  # [N, d]
    prototypes: Tensor  # [d, C]
    cosines: Tensor  # [N, C]

    @property
    def num_old(self) -> int:
        """Classes of earlier tasks: the tail."""
        return self.trained.seen.num_old

    @property
    def num_classes(self) -> int:
        """Classes seen so far."""
        return self.trained.seen.num_classes

    @property
    def num_prototypes(self) -> int:
        """Prototypes of the whole ETF, which angles depend on."""
        return self.trained.network.head.num_prototypes


def finished(runs: Sequence[RunOutcome], method: str = "") -> list[RunOutcome]:
    """Return the runs that have a result; a figure without any, or without any of ``method``, is refused."""
    done = [run for run in runs if run.result is not None]
    if not any(method in ("", run.config.method) for run in done):
        reasons = "; ".join(dict.fromkeys(run.error for run in runs if run.error)) or "nothing was run"
        raise FedfeatError(f"nothing to draw, for no run{f' of {method}' * bool(method)} has finished: {reasons}")
    return done


@torch.no_grad()
def model_view(run: RunOutcome, task: int) -> ModelView:
    """Run the test images through the model that a task (counted from 0) ended with."""
    trained = load_trained(run.path, task, choose_device("auto"))
    head = trained.network.head
    assert isinstance(head, ETFHead), "these figures look at angles to the prototypes of a fixed ETF"
    images, labels = seen_test_images(run, trained)
    outputs = [trained.outputs(part.to(trained.device)).features for part in torch.split(images, BATCH)]
    features = torch.cat(outputs)
    return ModelView(trained, images, labels, features.cpu(), head.prototypes.cpu(), head.cosine(features).cpu())


def seen_test_images(run: RunOutcome, trained: Trained) -> tuple[Tensor, Tensor]:
    """Return the test images of the classes that a model has seen, with labels in order of arrival."""
    # The run's folder knows where the data lay then, its outcome where they lie now.
    dataset = load_dataset(run.config.data, seed=run.config.seed)
    arrival = {name: number for number, name in enumerate(trained.class_names)}
    labels = np.array([arrival.get(name, -1) for name in dataset.class_names])[dataset.test_labels]
    chosen = np.flatnonzero(labels >= 0)
    return torch.from_numpy(np.array(dataset.test_images[chosen])), torch.from_numpy(labels[chosen])


class ClientViews(NamedTuple):
    """Test images of the classes seen up to a task through each client's model."""

    features: Tensor  # [K, N, d]
    labels: Tensor  # [N]
    num_old: int
    num_classes: int


def client_features(run: RunOutcome, task: int) -> ClientViews:
    """Return what each client's model makes of the test images.

    Clients' models are not kept. Here each client trains the model that the task ended with once more, through the
    engine's own operation, on the samples and exemplars it had in that task, with the learning rate of its last round.
    """
    trained = load_trained(run.path, task)
    images, labels = seen_test_images(run, trained)
    # The plain engine: figures are made where the run may not have been.
    here = EngineSettings(threads=run.config.engine.threads)
    engine = Experiment(run.config.model_copy(update={"engine": here})).engine
    engine.begin_task(task)
    engine.restore(_states_of(run, trained.seen.num_old, engine.train_images.labels))
    engine.round = run.config.train.rounds - 1
    weights = FlatModel(trained.network).vector.to(engine.device)
    clients = [int(k) for k in engine.scenario.participants(task, engine.round)]
    requests: dict[int, Payload] = {k: {"weights": weights} for k in clients}
    pixels = torch.split(images.to(engine.device), BATCH)
    found = []
    for client, reply in engine.ask("train", requests):
        if not isinstance(reply, dict):
            raise FedfeatError(f"{run.path}: client {client} could not train for the figure: {reply}")
        if "weights" in reply:
            network = engine.network.eval()
            with torch.no_grad():
                parts = [network.features(engine.test_images.normalise(p.float())) for p in pixels]
            found.append(torch.cat(parts).cpu())
    if len(found) < 2:
        raise FedfeatError(
            f"{run.path}: fewer than two clients trained at the end of task {task + 1}, so there is nothing to "
            "compare; raise scenario.clients or scenario.participation"
        )
    return ClientViews(torch.stack(found), labels, trained.seen.num_old, trained.seen.num_classes)


def _states_of(run: RunOutcome, num_old: int, labels: Tensor) -> dict[int, State]:
    """Return the clients' states with the exemplars they had in a task: those of the classes before it."""
    loaded = RunFolder.open(run.path).checkpoints.load()
    if loaded is None:
        raise FedfeatError(f"{run.path}: has no checkpoint, so the clients' exemplars are unknown; run it anew")
    states = {}
    for client, state in loaded[1].items():
        kept = state.get(EXEMPLARS)
        if isinstance(kept, Tensor):
            kept = kept.to(labels.device)
            states[client] = {**state, EXEMPLARS: kept[labels[kept] < num_old]}
    return states
