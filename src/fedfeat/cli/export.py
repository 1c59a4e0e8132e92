"""``fedfeat export``: a trained model as one file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfeat.cli.predict import CorrectionOption, RunArgument, TaskOption
from fedfeat.runs.export import export_model
from fedfeat.runs.trained import OWN, load_trained

console = Console(highlight=False, soft_wrap=True, markup=False)


class FileFormat(StrEnum):
    """What other programs read."""

    onnx = "onnx"
    torchscript = "torchscript"


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="file to write")],
    format: Annotated[FileFormat, typer.Option(help="what to write")] = FileFormat.onnx,
    correction: CorrectionOption = OWN,
    task: TaskOption = None,
) -> None:
    """Write a trained model with its normalisation and correction to one file, checked by the format's own runtime."""
    trained = load_trained(run, None if task is None else task - 1)
    exported = export_model(trained, out, format.value, correction)
    height, width, channels = trained.image_shape
    size = exported.path.stat().st_size / 2**20
    console.print(f"{exported.path}: {size:.1f} MiB, {format.value}, correction {exported.correction}", style="bold")
    console.print(f"input    images, uint8 [N, {height}, {width}, {channels}] in 0..255, any N")
    console.print(f"outputs  logits and probabilities, float32 [N, {len(trained.class_names)}]")
    console.print(f"classes  {', '.join(trained.class_names)} (also in the file's metadata)")
    console.print(
        f"checked  on {exported.checked} images with the format's runtime: largest difference {exported.difference:.1e}"
    )
