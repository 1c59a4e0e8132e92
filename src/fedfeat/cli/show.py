"""``fedfeat list`` and ``fedfeat doctor``."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedfeat.config import Config
from fedfeat.config.plugins import load_installed
from fedfeat.config.presets import PRESETS
from fedfeat.core.errors import DataError, MissingExtra
from fedfeat.data import list_datasets
from fedfeat.data.load import find_dataset, find_source
from fedfeat.data.settings import search_places
from fedfeat.methods import PARTS, example_methods
from fedfeat.runs.folder import environment

console = Console(highlight=False, soft_wrap=True, markup=False)


class Subject(StrEnum):
    """What can be listed."""

    methods = "methods"
    datasets = "datasets"
    presets = "presets"


def list_(
    subject: Annotated[Subject, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """List methods, data sets or presets."""
    rows = {Subject.methods: _methods, Subject.datasets: _datasets, Subject.presets: _presets}[subject]()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("" if v is None else str(v) for v in row.values()))
    console.print(table)
    if subject is Subject.methods:
        console.print(f"\nJoin a base and add-ons with '+': {', '.join(example_methods())}")


def doctor() -> None:
    """Say what is installed, which devices and data there are, and what is missing."""
    for key, value in environment().items():
        console.print(f"{key:10} {value if value is not None else 'none'}")
    console.print(f"{'device':10} {'cuda' if torch.cuda.is_available() else 'cpu'} (engine.device = auto)")
    for package, extra, purpose in (
        ("PIL", "images", "reading images"),
        ("pyarrow", "images", "reading parquet"),
        ("matplotlib", "plots", "drawing figures"),
        ("plotly", "plots", "drawing the charts of reports"),
        ("open_clip", "clip", "a local CLIP model (clip2fl, fedfsa, lander)"),
        ("transformers", "clip", "a local CLIP model (clip2fl, fedfsa, lander)"),
        ("onnxruntime", "export", "exporting to ONNX"),
        ("tensorboard", "tensorboard", "the tracker TensorBoard"),
        ("wandb", "wandb", "the tracker Weights & Biases"),
        ("mlflow", "mlflow", "the tracker MLflow"),
        ("flwr", "flower", "a federation of processes or machines"),
    ):
        there = importlib.util.find_spec(package) is not None
        note = "found" if there else f"missing: {purpose} needs it (pip install 'fedfeat[{extra}]')"
        console.print(f"{package:12} {note}")
    for info in list_datasets():
        console.print(f"{info.name:14} {_where(info.name)}")


def _where(name: str) -> str:
    if name in ("parquet", "npz", "folder"):
        return "your own files: set data.path"
    if name == "digits":
        return "built in"
    try:
        source = find_source(find_dataset(name))
    except DataError as error:
        return f"damaged: {error}"
    except MissingExtra as error:
        return f"found, but {error}"
    if source is not None:
        return f"found: {source.files[0].parent if source.files else name}"
    places = " or ".join(str(p) for p in search_places(name))
    return f"missing: get it with 'fedfeat data get {name}' or set data.path (looked in {places})"


def _methods() -> list[dict[str, Any]]:
    load_installed(reserved=Config.model_fields)
    return [
        {"name": p.name, "kind": p.kind, "settings": p.table, "summary": p.summary}
        for p in sorted(PARTS.values(), key=lambda p: (p.kind != "base", p.name))
    ]


def _datasets() -> list[dict[str, Any]]:
    return [asdict(info) for info in list_datasets()]


def _presets() -> list[dict[str, Any]]:
    return [{"name": p.name, "summary": p.summary} for p in PRESETS.values()]
