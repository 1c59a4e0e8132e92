"""The two formats: how a prediction graph is written, and how the format's own runtime reads and runs it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedfeat.core.errors import required
from fedfeat.models import Network, PretrainedBackbone
from fedfeat.runs.trained import Trained

INPUT = "images"
OUTPUTS = ("logits", "probabilities")


class PredictionGraph(nn.Module):
    """Normalisation, network and correction in one module: uint8 [N, H, W, C] to logits and probabilities [N, C]."""

    def __init__(self, trained: Trained, correction: str) -> None:
        super().__init__()
        self.network = _independent(trained.network)
        self.trained = replace(trained, network=self.network)
        self.prediction = trained.correction(correction)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and their softmax."""
        logits = self.trained.logits(images, self.prediction)
        return logits, logits.softmax(dim=1)

    def example(self, count: int) -> Tensor:
        """Return images to trace and to check with: coarse patches, noise, and all black and all white ones."""
        height, width, channels = self.trained.image_shape
        generator = torch.Generator().manual_seed(count)
        coarse = torch.randint(0, 256, (count, channels, 4, 4), generator=generator, dtype=torch.uint8).float()
        patches = nn.functional.interpolate(coarse, (height, width), mode="bilinear").permute(0, 2, 3, 1)
        noise = torch.randint(-40, 41, patches.shape, generator=generator)
        images = (patches + noise).clamp(0, 255)
        if count >= 3:
            images[0], images[1] = 0, 255
        return images.to(torch.uint8)


def _independent(network: Network) -> Network:
    """Return a copy whose tensors are not views into one vector, which files would store in full for each.

    Adapters become part of the layers that they sit on.
    """
    twin = copy.deepcopy(network)
    if isinstance(twin.backbone, PretrainedBackbone):
        twin.backbone = twin.backbone.merged()
    for tensor in (*twin.parameters(), *twin.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return twin


PURPOSE = "exporting to ONNX"
METADATA = "fedfeat.json"  # the entry of a TorchScript file
Predict = Callable[[Tensor], tuple[Tensor, Tensor]]  # images -> logits and probabilities


class Onnx:
    """ONNX, run by ONNX Runtime."""

    suffix = ".onnx"

    def write(self, graph: PredictionGraph, path: Path, metadata: Mapping[str, str]) -> None:
        """Export with a batch of any size; the metadata become the model's properties."""
        for package in ("onnx", "onnxscript", "onnxruntime"):
            required(package, "export", PURPOSE)
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

    def load(self, path: Path) -> Predict:
        """Return the file as a function on the CPU."""
        onnxruntime = required("onnxruntime", "export", PURPOSE)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def predict(images: Tensor) -> tuple[Tensor, Tensor]:
            logits, probabilities = session.run(list(OUTPUTS), {INPUT: images.numpy()})
            return torch.from_numpy(logits), torch.from_numpy(probabilities)

        return predict


class TorchScript:
    """TorchScript, run by libtorch; PyTorch still reads and writes it, but develops it no further."""

    suffix = ".pt"

    def write(self, graph: PredictionGraph, path: Path, metadata: Mapping[str, str]) -> None:
        """Trace the graph; the metadata become an entry of the archive."""
        with _quiet():
            traced = torch.jit.trace(graph, (graph.example(3),))  # type: ignore[no-untyped-call]
            torch.jit.save(traced, str(path), _extra_files={METADATA: json.dumps(dict(metadata))})

    def load(self, path: Path) -> Predict:
        """Return the file as a function on the CPU."""
        with _quiet():
            module: Predict = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return torch.no_grad()(module)


Format = Onnx | TorchScript
FORMATS: dict[str, Format] = {"onnx": Onnx(), "torchscript": TorchScript()}


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
