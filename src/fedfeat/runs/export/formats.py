"""The two formats: how a prediction graph is written, and how the format's own runtime reads and runs it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedfeat.core.errors import MissingExtra
from fedfeat.runs.export.graph import INPUT, OUTPUTS, PredictionGraph

METADATA = "fedfeat.json"  # the entry of a TorchScript file


class Format(Protocol):
    """A kind of file and its runtime."""

    suffix: str

    def write(self, graph: PredictionGraph, path: Path, metadata: Mapping[str, str]) -> None:
        """Write one file."""

    def run(self, path: Path, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run the file on uint8 images and return logits and probabilities."""

    def metadata(self, path: Path) -> dict[str, str]:
        """Read back what was said about the model."""


class Onnx:
    """ONNX, run by ONNX Runtime."""

    suffix = ".onnx"

    def write(self, graph: PredictionGraph, path: Path, metadata: Mapping[str, str]) -> None:
        """Export with a batch of any size; the metadata become the model's properties."""
        _require("onnx", "onnxscript", "onnxruntime")
        with _quiet():
            program = torch.onnx.export(
                graph,
                (graph.example(3),),
                input_names=[INPUT],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        program.model.metadata_props.update(metadata)
        program.save(str(path), external_data=False)

    def run(self, path: Path, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run on the CPU."""
        outputs = self._session(path).run(list(OUTPUTS), {INPUT: images.numpy()})
        logits, probabilities = (torch.from_numpy(o) for o in outputs)
        return logits, probabilities

    def metadata(self, path: Path) -> dict[str, str]:
        """Read the model's properties."""
        found: dict[str, str] = self._session(path).get_modelmeta().custom_metadata_map
        return found

    def _session(self, path: Path) -> Any:
        (onnxruntime,) = _require("onnxruntime")
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


class TorchScript:
    """TorchScript, run by libtorch; PyTorch still reads and writes it, but develops it no further."""

    suffix = ".pt"

    def write(self, graph: PredictionGraph, path: Path, metadata: Mapping[str, str]) -> None:
        """Trace the graph; the metadata become an entry of the archive."""
        with _quiet():
            traced = torch.jit.trace(graph, (graph.example(3),))  # type: ignore[no-untyped-call]
            torch.jit.save(traced, str(path), _extra_files={METADATA: json.dumps(dict(metadata))})

    def run(self, path: Path, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run on the CPU."""
        with _quiet(), torch.no_grad():
            module = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
            logits, probabilities = module(images)
        return logits, probabilities

    def metadata(self, path: Path) -> dict[str, str]:
        """Read the archive's entry."""
        extra = {METADATA: ""}
        with _quiet():
            torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]
        found: dict[str, str] = json.loads(extra[METADATA])
        return found


FORMATS: dict[str, Format] = {"onnx": Onnx(), "torchscript": TorchScript()}


def _require(*packages: str) -> tuple[Any, ...]:
    found = []
    for package in packages:
        try:
            found.append(__import__(package))
        except ImportError as error:
            raise MissingExtra(package, "export", "exporting to ONNX") from error
    return tuple(found)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' progress, and their notes to their own developers, from the user's terminal."""
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
