"""The model of a task as one file, ``models/task-NN.safetensors``, and the last one out of a run's checkpoint.

A file holds the flat vector, the tensors and numbers that predictions use, and a card that says what the model expects
and which classes it knows. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from fedfeat.algorithm.step import Seen
from fedfeat.core.errors import CheckpointError
from fedfeat.core.files import write_atomically
from fedfeat.core.settings import Settings
from fedfeat.data import Dataset
from fedfeat.data.settings import Resize
from fedfeat.federation.progress import Progress
from fedfeat.runs.checkpoint import CheckpointFolder
from fedfeat.scenario import Scenario

CARD = "model"  # the card's name in a checkpoint's manifest and in a file's metadata


class ModelCard(Settings):
    """What a model expects and knows: with it, predicting needs no data set."""

    image_shape: tuple[int, int, int]  # height, width, channels
    mean: tuple[float, ...]  # per channel, on the scale 0..1
    std: tuple[float, ...]
    class_names: tuple[str, ...]  # of the whole run, in order of arrival
    seen_classes: tuple[int, ...]  # after each task
    backbone: str | None = None  # fingerprint of the folder with its frozen weights, if it has any
    resize: Resize = "crop"  # how images were brought to their size

    @classmethod
    def of(
        cls, dataset: Dataset, scenario: Scenario, backbone: str | None = None, resize: Resize = "crop"
    ) -> ModelCard:
        """Describe the models of an experiment."""
        return cls(
            image_shape=dataset.image_shape,
            mean=dataset.mean,
            std=dataset.std,
            class_names=tuple(dataset.class_names[c] for c in scenario.class_order),
            seen_classes=tuple(scenario.seen_classes(task) for task in range(scenario.num_tasks)),
            backbone=backbone,
            resize=resize,
        )

    def seen(self, task: int) -> Seen:
        """Return where the stream of classes stood in a task."""
        before, now = self.seen_classes[task - 1] if task else 0, self.seen_classes[task]
        return Seen(task, before if before < now else 0, now)  # where no class comes, none is old


@dataclass(frozen=True)
class SavedModel:
    """A model as it is stored: its vector, and what the server knew besides."""

    card: ModelCard
    task: int  # counted from 0
    finished: bool  # whether the task had ended
    weights: Tensor
    numbers: Mapping[str, float]
    tensors: Mapping[str, Tensor]


def refuse_other_backbone(path: str | None, begun: str | None, found: str | None) -> None:
    """Refuse frozen weights that are not those which a run began with: its own numbers mean nothing on others."""
    if begun != found:
        raise CheckpointError(
            f"model.path: the model in {path} is not the one that the run began with (fingerprint {str(begun)[:12]} "
            f"expected, {str(found)[:12]} found); point model.path in the run's config.toml to the original folder"
        )


def model_path(run: Path, task: int) -> Path:
    """Return where a run keeps the model of a task (counted from 0; people count from 1)."""
    return run / "models" / f"task-{task + 1:02d}.safetensors"


def write_model(run: Path, card: ModelCard, progress: Progress) -> Path:
    """Keep the model that a task ended with."""
    tensors = {f"tensors/{name}": value.cpu().contiguous() for name, value in progress.tensors.items()}
    tensors["weights"] = progress.weights.cpu()
    description = {"card": card.model_dump(mode="json"), "task": progress.task, "numbers": progress.numbers}
    description["checksum"] = _checksum(tensors)
    # One entry: safetensors writes several in any order, and equal models should be equal files.
    metadata = {CARD: json.dumps(description)}
    path = model_path(run, progress.task)
    write_atomically(path, to_safetensors(tensors, metadata=metadata))
    return path


def read_model(run: Path, task: int | None = None) -> SavedModel:
    """Return the last model of a run, or the one that a task (counted from 0) ended with."""
    if task is not None and model_path(run, task).is_file():
        return _read_file(model_path(run, task))
    last = _from_checkpoint(run)
    if task is not None:
        if last is None or last.task != task or not last.finished:
            raise CheckpointError(
                f"{run}: the model of task {task + 1} was not kept (there is no {model_path(run, task)}); "
                "set run.keep_models = true before a run, or use the last model"
            )
        return last
    if last is not None:
        return last
    kept = sorted((run / "models").glob("task-*.safetensors"))
    if not kept and any((run / "checkpoint").glob("*/manifest.json")):
        raise CheckpointError(f"{run}: every checkpoint is damaged; restore a copy of it, or run the experiment again")
    if not kept:
        raise CheckpointError(f"{run}: holds no model yet; let the run reach its first checkpoint")
    return _read_file(kept[-1])


def _read_file(path: Path) -> SavedModel:
    try:
        with safe_open(str(path), framework="pt") as file:
            description = json.loads((file.metadata() or {})[CARD])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if description.get("checksum", _checksum(tensors)) != _checksum(tensors):
            raise ValueError("its checksum does not match")
        return SavedModel(
            card=ModelCard.model_validate(description["card"]),
            task=description["task"],
            finished=True,
            weights=tensors.pop("weights"),
            numbers=description["numbers"],
            tensors={name.removeprefix("tensors/"): tensor for name, tensor in tensors.items()},
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole model file ({error}); restore it, or use another task's") from error


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _from_checkpoint(run: Path) -> SavedModel | None:
    found = CheckpointFolder(run / "checkpoint").peek()
    if found is None:
        return None
    progress, manifest = found
    try:
        card = ModelCard.model_validate(manifest[CARD])
    except (KeyError, ValidationError):
        raise CheckpointError(
            f"{run}: its checkpoint does not say what the model expects (an earlier version wrote it); "
            "run the experiment again"
        ) from None
    return SavedModel(card, progress.task, progress.finished, progress.weights, progress.numbers, progress.tensors)
