"""What there is: ``fedfeat list``, ``doctor``, ``scenario show`` and ``bench``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedfeat.core.errors import DataError, FedfeatError, MissingExtra
from fedfeat.data import list_datasets
from fedfeat.data.load import find_dataset, find_source
from fedfeat.data.settings import search_places

console = Console(highlight=False, soft_wrap=True, markup=False)
scenario = typer.Typer(no_args_is_help=True)
bench = typer.Typer(no_args_is_help=True)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OPTIONAL = (
    ("PIL", "images", "reading images"),
    ("pyarrow", "images", "reading parquet"),
    ("matplotlib", "plots", "drawing figures"),
    ("plotly", "plots", "drawing the charts of reports"),
    ("open_clip", "clip", "a local CLIP model: teacher, class names"),
    ("transformers", "hf", "a pre-trained backbone, or a local CLIP model: teacher, class names"),
    ("peft", "hf", "training adapters of a pre-trained backbone"),
    ("onnxruntime", "export", "exporting to ONNX"),
    ("tensorboard", "tensorboard", "the tracker TensorBoard"),
    ("wandb", "wandb", "the tracker Weights & Biases"),
    ("mlflow", "mlflow", "the tracker MLflow"),
    ("flwr", "flower", "a federation of processes or machines"),
)


class Subject(StrEnum):
    """What can be listed."""

    methods = "methods"
    datasets = "datasets"
    presets = "presets"
    recipes = "recipes"


def list_(
    subject: Annotated[Subject, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE", help="Python file with methods of your own; repeatable"),
    ] = None,
) -> None:
    """List methods, data sets, presets or recipes."""
    if plugin:
        from fedfeat.config.config import Config
        from fedfeat.config.plugins import load_plugins

        load_plugins([str(path.absolute()) for path in plugin], Path(), reserved=Config.model_fields)
    listed = {
        Subject.methods: _methods,
        Subject.datasets: _datasets,
        Subject.presets: _presets,
        Subject.recipes: _recipes,
    }
    rows = listed[subject]()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("" if v is None else str(v) for v in row.values()))
    console.print(table)
    if subject is Subject.methods:
        from fedfeat.methods import example_methods

        console.print(f"\nJoin a base and add-ons with '+': {', '.join(example_methods())}")


def doctor() -> None:
    """Say what is installed, which devices and data there are, and what is missing."""
    from fedfeat.runs.folder import environment

    here = environment()
    for key, value in here.items():
        console.print(f"{key:10} {value if value is not None else 'none'}")
    console.print(f"{'device':10} {'cuda' if here['gpu'] else 'cpu'} (engine.device = auto)")
    for package, extra, purpose in OPTIONAL:
        there = importlib.util.find_spec(package) is not None
        note = "found" if there else f"missing; pip install 'fedfeat[{extra}]' for {purpose}"
        console.print(f"{package:15} {note}")
    for info in list_datasets():
        console.print(f"{info.name:15} {_where(info.name, info.needs)}")


def _where(name: str, needs: str) -> str:
    if needs == "path":
        return "your own files: set data.path"
    if needs == "nothing":
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
    from fedfeat.config.config import Config
    from fedfeat.config.plugins import load_installed
    from fedfeat.config.presets import COMPOSITIONS
    from fedfeat.methods import PARTS

    load_installed(reserved=Config.model_fields)
    named = [
        {"name": name, "kind": "composition", "settings": None, "summary": f"Recommended: {parts}"}
        for name, parts in COMPOSITIONS.items()
    ]
    return named + [
        {"name": p.name, "kind": p.kind, "settings": p.table, "summary": p.summary}
        for p in sorted(PARTS.values(), key=lambda p: (p.kind != "base", p.name))
    ]


def _datasets() -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "classes": info.classes or "any",
            "image": info.image_size,
            "needs": info.needs,
            "summary": info.description,
        }
        for info in list_datasets()
    ]


def _recipes() -> list[dict[str, Any]]:
    from fedfeat.config.recipes import RECIPES

    return [{"name": recipe.name, "summary": recipe.summary} for recipe in RECIPES.values()]


def _presets() -> list[dict[str, Any]]:
    from fedfeat.config.presets import PRESETS

    return [{"name": p.name, "summary": p.summary} for p in PRESETS.values()]


@scenario.command()
def show(
    config: Annotated[Path, typer.Argument(help="Experiment file (TOML).")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, e.g. scenario.beta=0.1; repeatable."),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Draw a heat map into this file, or into this folder as scenario-NAME.png."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what scenario.json would hold.")] = False,
) -> None:
    """Show which client sees which classes in which task; nothing is trained."""
    from fedfeat.config.config import load_config
    from fedfeat.data import load_dataset
    from fedfeat.report.scenario import draw_scenario, print_scenario
    from fedfeat.scenario.build import scenario_of

    settings = load_config(config, overrides or [])
    data = load_dataset(settings.data, seed=settings.seed)
    partition = scenario_of(data, settings.scenario, settings.seed)
    domains = data.domains.names if data.domains else ()
    if as_json:
        typer.echo(json.dumps(partition.to_json(data.class_names, domains), indent=2))
    else:
        print_scenario(partition, data.class_names, domain_names=domains)
    if png is not None:
        target = png / f"scenario-{config.stem}.png" if png.is_dir() else png
        draw_scenario(partition, target, data.class_names, domains)
        typer.echo(f"heat map written to {target}", err=True)


@bench.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def gpu(context: typer.Context) -> None:
    """Compare a bare loop, the in-process engine and engine cuda on this GPU: one table, ratios in one run."""
    script = BENCHMARKS / "gpu.py"
    if not script.is_file():
        raise FedfeatError(
            "bench: benchmarks are not part of an installation; get the repository and run: python benchmarks/gpu.py"
        )
    raise typer.Exit(subprocess.run([sys.executable, str(script), *context.args]).returncode)
