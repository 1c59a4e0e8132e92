"""What the files of exported models say about themselves, as other programs read it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch

from fedfeat.runs.export.formats import METADATA


def metadata_of(path: Path, format: str) -> dict[str, str]:
    """Return the properties of an ONNX file, or the entry of a TorchScript archive."""
    if format == "onnx":
        import onnxruntime

        found: dict[str, str] = onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map
        return found
    entry = {METADATA: ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch develops it no further
        torch.jit.load(str(path), _extra_files=entry)  # type: ignore[no-untyped-call]
    return dict(json.loads(entry[METADATA]))
