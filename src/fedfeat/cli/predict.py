"""``fedfeat predict`` and ``fedfeat export``: a trained model on image files, or as one file for other programs."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedfeat.algorithm.tables import OWN
from fedfeat.core.errors import DataError
from fedfeat.data.images import find_images, fit_image
from fedfeat.engines.base import choose_device
from fedfeat.runs.export import FORMATS, export_model
from fedfeat.runs.trained import Trained, load_trained

console = Console(highlight=False, soft_wrap=True, markup=False)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="run folder")]
CorrectionOption = Annotated[
    str, typer.Option(help="own: what the method prescribes; none: the classifier alone; or one by its name")
]
TaskOption = Annotated[int | None, typer.Option(min=1, help="model that this task ended with; default is the last one")]
CHUNK = 256  # images read before they are predicted together
Row = dict[str, Any]


class FileFormat(StrEnum):
    """What other programs read."""

    onnx = "onnx"
    torchscript = "torchscript"


def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="image files, or folders of them")],
    correction: CorrectionOption = OWN,
    top: Annotated[int, typer.Option(min=1, help="how many classes to name per image")] = 3,
    task: TaskOption = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Say what a trained model sees in images; one that cannot be read is named, and the others go on."""
    trained = load_trained(run, None if task is None else task - 1, choose_device(device))
    trained.correction(correction)
    paths = list(find_images(images))
    if not paths:
        raise DataError(
            f"{', '.join(map(str, images))}: no image was found; name image files or folders that hold some"
        )
    rows = [row for chunk in _chunks(paths) for row in predict_files(trained, chunk, correction, top)]
    if as_json:
        print(json.dumps({**_about(trained, correction), "images": rows}, indent=2))
    else:
        _print(trained, rows, correction, top)
    if any("error" in row for row in rows):
        raise typer.Exit(1)


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="file to write")],
    format: Annotated[
        FileFormat | None, typer.Option(help="what to write; default: torchscript for a file .pt, onnx for others")
    ] = None,
    correction: CorrectionOption = OWN,
    task: TaskOption = None,
) -> None:
    """Write a trained model with its normalisation and correction to one file, checked by the format's own runtime."""
    trained = load_trained(run, None if task is None else task - 1)
    kind = format or (FileFormat.torchscript if out.suffix == FORMATS["torchscript"].suffix else FileFormat.onnx)
    exported = export_model(trained, out, kind.value, correction)
    height, width, channels = trained.image_shape
    size = exported.path.stat().st_size / 2**20
    console.print(f"{exported.path}: {size:.1f} MiB, {kind.value}, correction {exported.correction}", style="bold")
    shape = f"[N, {height}, {width}, {channels}]"
    console.print(f"input    images, uint8 {shape} in 0..255, any N; trained on images resized by {trained.resize}")
    console.print(f"outputs  logits and probabilities, float32 [N, {len(trained.class_names)}]")
    console.print(f"classes  {', '.join(trained.class_names)} (also in the file's metadata)")
    console.print(
        f"checked  on {exported.checked} images with the format's runtime: largest difference {exported.difference:.1e}"
    )


def predict_files(trained: Trained, paths: Sequence[Path], correction: str, top: int) -> list[Row]:
    """Return one row per file: its best classes with their probabilities, or what is wrong with it."""
    pixels, problems = {}, {}
    for path in paths:
        try:
            pixels[path] = fit_image(path, trained.image_shape, trained.resize)
        except DataError as error:
            problems[path] = str(error)
    stacked = np.stack([*pixels.values()]) if pixels else np.empty((0, *trained.image_shape), np.uint8)
    predicted = trained.predict(stacked, correction)
    best = predicted.probabilities.topk(min(top, len(trained.class_names)), dim=1)
    named = {
        path: [{"class": trained.class_names[c], "probability": p} for c, p in zip(classes, shares, strict=True)]
        for path, classes, shares in zip(pixels, best.indices.tolist(), best.values.tolist(), strict=True)
    }
    return [
        {"image": str(path), "error": problems[path]}
        if path in problems
        else {"image": str(path), "class": named[path][0]["class"], "top": named[path]}
        for path in paths
    ]


def _chunks(paths: list[Path]) -> Iterator[list[Path]]:
    remaining = iter(dict.fromkeys(paths))
    while chunk := list(itertools.islice(remaining, CHUNK)):
        yield chunk


def _about(trained: Trained, correction: str) -> Row:
    return {
        "method": trained.config.method,
        "data": trained.config.data.name,
        "task": trained.seen.task + 1,
        "task_finished": trained.finished,
        "correction": trained.own_correction if correction == OWN else correction,
        "classes": list(trained.class_names),
    }


def _print(trained: Trained, rows: list[Row], correction: str, top: int) -> None:
    about = _about(trained, correction)
    height, width, channels = trained.image_shape
    state = "after" if trained.finished else "in the middle of"
    console.print(
        f"{about['method']} trained on {about['data']}, {state} task {about['task']}: "
        f"{len(trained.class_names)} classes, correction {about['correction']}; "
        f"images become {width}x{height}, {'grey' if channels == 1 else 'colour'}, by {trained.resize}",
        style="dim",
    )
    good = [row for row in rows if "error" not in row]
    columns = min(top, len(trained.class_names))
    table = Table(box=None, pad_edge=False)
    table.add_column("image", overflow="fold")  # a long path goes over two lines rather than lose its end
    for number in range(columns):
        table.add_column(f"{number + 1}.", overflow="fold")
    for row in good:
        table.add_row(row["image"], *(f"{t['class']} {100 * t['probability']:.1f} %" for t in row["top"]))
    if good:
        console.print(table)
    for row in rows:
        if "error" in row:
            print(f"warning: {row['error']}", file=sys.stderr)
