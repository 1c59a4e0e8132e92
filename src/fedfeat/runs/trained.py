"""A trained model, taken from a run's folder and put to use: no data set and no federation is needed.

``load_trained("runs/mine").predict(images)`` predicts with the last model; with ``run.keep_models`` those of earlier
tasks can be had too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.method import Method, Prediction
from fedfeat.algorithm.step import Known, Seen
from fedfeat.algorithm.tables import OWN
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError, FedfeatError, nearest
from fedfeat.data.augment import DeviceImages
from fedfeat.data.dataset import NO_AUGMENTATION
from fedfeat.data.settings import Resize
from fedfeat.models import ETFHead, FlatModel, Network, Outputs, PixelScale, build_network
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.model_file import ModelCard, SavedModel, read_model, refuse_other_backbone

NONE = "none"


class Predicted(NamedTuple):
    """What a model says about images; columns are classes in order of arrival."""

    logits: Tensor  # [N, C], in the units that the classifier was trained on wherever the correction allows it
    probabilities: Tensor  # [N, C], their softmax
    labels: Tensor  # [N], the class with the largest logit


@dataclass(frozen=True)
class Trained:
    """A model at the end of a task (or at the last checkpoint inside one), and what predicting with it takes."""

    config: Config
    method: Method
    network: Network  # in evaluation mode, on ``device``
    images: DeviceImages  # none in it: it brings pixels to the scale that the model was trained on
    image_shape: tuple[int, int, int]  # height, width, channels
    seen: Seen
    known: Known
    class_names: tuple[str, ...]  # of the classes seen so far, in order of arrival
    finished: bool  # False for a model from the middle of a task
    resize: Resize = "crop"  # how images of another size become the model's, as in training

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    @property
    def corrections(self) -> dict[str, Prediction | None]:
        """Ways to predict, by name: ``none`` are the classifier's own logits, ``own`` is what the method prescribes."""
        ways: dict[str, Prediction | None] = {NONE: None, OWN: self.method.predict}
        for prediction in (self.method.predict, *self.method.variants.values()):
            if prediction is not None:
                ways.setdefault(_name_of(prediction), prediction)
        return ways

    @property
    def own_correction(self) -> str:
        """What the method's own prediction is called; ``none`` without one, ``own`` where it has no name."""
        return NONE if self.method.predict is None else _name_of(self.method.predict)

    def correction(self, name: str) -> Prediction | None:
        """Return one of ``corrections``; another name is refused."""
        ways = self.corrections
        if name not in ways:
            raise ConfigError(f"correction: {self.method.name!r} has no {name!r}; {nearest(name, ways)}")
        return ways[name]

    @torch.no_grad()
    def predict(self, images: np.ndarray | Tensor, correction: str = OWN, *, batch: int = 256) -> Predicted:
        """Predict images, uint8 [N, H, W, C] of the model's own size."""
        way = self.correction(correction)
        kind = str(images.dtype).removeprefix("torch.")
        if kind != "uint8" or tuple(images.shape[1:]) != self.image_shape:
            raise FedfeatError(
                f"predict: expected uint8 images [N, {', '.join(map(str, self.image_shape))}], got {kind} "
                f"{list(images.shape)}; resize and convert them first"
            )
        parts = [self.logits(chunk.to(self.device), way) for chunk in torch.split(_as_tensor(images), batch)]
        logits = torch.cat([*parts, torch.empty(0, self.seen.num_classes, device=self.device)])
        return Predicted(logits, logits.softmax(dim=1), logits.argmax(dim=1))

    def outputs(self, pixels: Tensor) -> Outputs:
        """Return features and the classifier's logits of uint8 images that are on the device."""
        outputs: Outputs = self.network(self.images.normalise(pixels.float()))
        return outputs

    def logits(self, pixels: Tensor, correction: Prediction | None) -> Tensor:
        """Return (corrected) logits of uint8 images that are on the device."""
        outputs = self.outputs(pixels)
        if correction is None:
            return outputs.logits
        scores = correction(self.network, outputs, self.seen, self.known)
        head = self.network.head
        if isinstance(head, ETFHead) and getattr(correction, "gives_cosines", False):
            # These work on cosines, which a softmax would find all alike; the classifier trains on cosines times
            # the length of what it multiplies. The order of classes stays.
            scores = scores * head.multiplied(outputs.features).norm(dim=1, keepdim=True)
        return scores


def load_trained(run_folder: Path | str, task: int | None = None, device: str | torch.device = "cpu") -> Trained:
    """Load the last model of a run, or the one that a task ended with.

    :param task: counted from 0; tasks before the last need ``run.keep_models = true`` in the run's configuration.
    """
    folder = RunFolder.open(Path(run_folder))
    config = folder.config()
    method = config.build_method()
    saved = read_model(folder.path, task)
    network = _network(config, method, saved).to(device)
    seen = saved.card.seen(saved.task)
    return Trained(
        config=config,
        method=method,
        network=network,
        images=_no_images(saved.card, torch.device(device)),
        image_shape=saved.card.image_shape,
        seen=seen,
        known=Known(saved.numbers, {name: tensor.to(device) for name, tensor in saved.tensors.items()}),
        class_names=saved.card.class_names[: seen.num_classes],
        finished=saved.finished,
        resize=saved.card.resize,
    )


def _name_of(prediction: Prediction) -> str:
    """Return a prediction's name; a plain function, which a plugin may give, has none."""
    return str(getattr(prediction, "name", OWN))


def _as_tensor(images: np.ndarray | Tensor) -> Tensor:
    """Return a tensor of an array however it lies in memory: a reversed or read-only one is copied."""
    return images if isinstance(images, Tensor) else torch.from_numpy(np.require(images, requirements=["C", "W"]))


def _network(config: Config, method: Method, saved: SavedModel) -> Network:
    network = build_network(
        config.model,
        saved.card.image_shape,
        method.head,
        seed=config.seed,
        num_classes=len(saved.card.class_names),
        extras=method.extras,
        pixels=PixelScale(saved.card.mean, saved.card.std),
    )
    refuse_other_backbone(config.model.path, saved.card.backbone, network.backbone.fingerprint)
    for step, classes in enumerate(saved.card.seen_classes[: saved.task + 1]):
        network.head.grow(classes, step)
    FlatModel(network).load(saved.weights)
    return network.requires_grad_(False).eval()


def _no_images(card: ModelCard, device: torch.device) -> DeviceImages:
    empty = np.empty((0, *card.image_shape), dtype=np.uint8)
    labels = np.empty(0, dtype=np.int64)
    return DeviceImages(empty, labels, mean=card.mean, std=card.std, augmentation=NO_AUGMENTATION, device=device)
