"""``fedfeat scenario``: look at who sees what before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="ReferenceFunction at a scenario: tasks, clients, label skew.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``show`` a named command even while it is the only one."""


@app.command()
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
    from fedfeat.config import load_config
    from fedfeat.data import load_dataset
    from fedfeat.report.scenario_figure import draw_scenario
    from fedfeat.report.scenario_text import print_scenario
    from fedfeat.scenario import build_scenario

    settings = load_config(config, overrides or [])
    data = load_dataset(settings.data, seed=settings.seed)
    scenario = build_scenario(data.train_labels, data.num_classes, settings.scenario, settings.seed)
    if as_json:
        typer.echo(json.dumps(scenario.to_json(data.class_names), indent=2))
    else:
        print_scenario(scenario, data.class_names)
    if png is not None:
        target = png / f"scenario-{config.stem}.png" if png.is_dir() else png
        draw_scenario(scenario, target, data.class_names)
        typer.echo(f"heat map written to {target}", err=True)
