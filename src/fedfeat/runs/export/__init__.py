"""A trained model as one file for other programs: ONNX or TorchScript, with normalisation and correction inside.

The file takes pixels as decoders give them, uint8 [N, H, W, C], and gives logits and probabilities. It is run by the
format's own runtime before it gets its name, and refused if that does not predict what ``Trained.predict`` does.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch

import fedfeat
from fedfeat.algorithm.tables import OWN
from fedfeat.core.errors import ConfigError, FedfeatError, nearest
from fedfeat.core.files import disk_errors
from fedfeat.runs.export.formats import FORMATS, Format, PredictionGraph
from fedfeat.runs.trained import Trained

TOLERANCE = 1e-4  # of the largest logit: what another order of float32 sums may change
BATCHES = (1, 7, 64)  # sizes of the batches that a file is checked with


class ExportError(FedfeatError):
    """A model that cannot be exported, or a file that does not predict what the model does."""


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked."""

    path: Path
    correction: str
    checked: int  # images that runtime and model were compared on
    difference: float  # largest difference of a logit, as a share of the largest logit


def export_model(trained: Trained, path: Path, format: str, correction: str = OWN) -> Exported:
    """Write a model to one file, compare the file's predictions with ours, and only then give it its name."""
    if format not in FORMATS:
        raise ConfigError(f"format: no format is called {format!r}; {nearest(format, FORMATS)}")
    if path.is_dir():
        example = path / f"model{FORMATS[format].suffix}"
        raise ExportError(f"{path}: expected a file to write, got a folder; name a file, such as {example}")
    graph = PredictionGraph(trained, correction).eval()
    name = trained.own_correction if correction == OWN else correction
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{FORMATS[format].suffix}")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(FORMATS[format], graph, temporary, name)
            difference = compare(FORMATS[format], temporary, trained, correction, graph)
            if not difference <= TOLERANCE:
                raise ExportError(
                    f"{path}: not written, because the exported {format} model differs from ours by {difference:.2g} "
                    f"of the largest logit (allowed {TOLERANCE:g}); try the other format or --correction none"
                )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return Exported(path, name, sum(BATCHES), difference)


def compare(kind: Format, path: Path, trained: Trained, correction: str, graph: PredictionGraph) -> float:
    """Return the largest difference between a file's logits and ours, over batches of several sizes."""
    worst, predict = 0.0, kind.load(path)
    for size in BATCHES:
        images = graph.example(size)
        ours = trained.predict(images, correction)
        logits, probabilities = predict(images)
        if logits.shape != ours.logits.shape:
            return float("inf")
        scale = ours.logits.abs().max().clamp(min=1e-6)
        worst = max(worst, float((logits - ours.logits).abs().max() / scale))
        worst = max(worst, float((probabilities - ours.probabilities).abs().max()))
    return worst if worst == worst else float("inf")  # NaN compares as no difference at all


def _write(kind: Format, graph: PredictionGraph, path: Path, correction: str) -> None:
    trained = graph.trained
    metadata = {
        "class_names": json.dumps(trained.class_names),
        "input": f"uint8 images [N, {', '.join(map(str, trained.image_shape))}], height, width, channels (RGB or grey)",
        "resize": trained.resize,
        "method": trained.config.method,
        "correction": correction,
        "task": str(trained.seen.task + 1),
        "producer": f"fedfeat {fedfeat.__version__}",
    }
    try:
        with torch.no_grad():
            kind.write(graph, path, metadata)
    except (OSError, FedfeatError):
        raise
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(
            f"export: torch cannot turn {trained.config.method!r} with correction {correction!r} into this format "
            f"({reason}); try the other format or --correction none"
        ) from error


__all__ = ["BATCHES", "FORMATS", "TOLERANCE", "ExportError", "Exported", "compare", "export_model"]
