"""``fedfeat run``, ``resume``, ``rollback``, ``compare`` and ``sweep``: one experiment, or many, none run twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedfeat.cli import dry_run as dry
from fedfeat.cli.progress import RunProgress, console, exit_if_failed
from fedfeat.cli.report import write_comparison, write_run_report
from fedfeat.config.config import Config, load_config
from fedfeat.config.presets import COMPARED, COMPOSITIONS, short_name
from fedfeat.config.recipes import RECIPES
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat.federation.rollback import in_words
from fedfeat.runs.experiment import resume as resume_run
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.rollback import roll_back
from fedfeat.runs.sweep import Planned, RunPool, in_turn, plan, processes
from fedfeat.runs.sweep.grid import comparison_runs, load_sweep

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file, or the name of a preset")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change a setting, such as train.lr=0.1"),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="bundle of settings, by name or as a TOML file; --set comes after"),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Python file with methods of your own; repeatable"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="check everything and say what would run and take how long; write nothing")
]
Workers = Annotated[int | None, typer.Option(min=1, help="runs at once on this machine; default 1")]
PerGPU = Annotated[int | None, typer.Option(min=1, help="runs that share a GPU; uses every GPU there is")]
RayAddress = Annotated[str | None, typer.Option(metavar="ADDRESS", help="run on a Ray cluster; 'local' starts one")]


def run(
    config: ConfigFile,
    recipe: RecipeName = None,
    set: Overrides = None,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    out: Annotated[Path | None, typer.Option(help="run folder to write")] = None,
) -> None:
    """Run an experiment."""
    wanted = load_config(config, changes(recipe, set), plugin or ())
    if remark := _remark(wanted):
        console.print(remark)
    if dry_run:
        return dry.dry_run(wanted, out, console)
    progress = RunProgress(console)
    with _stoppable(progress):
        start(wanted, out, (progress,))
        write_run_report(progress.folder)


def _remark(config: Config) -> str | None:
    """Return what to say of a recommended composition without its recipe, or of its recipe without it; or None."""
    table = flatten(config.to_table())
    for name, parts in COMPOSITIONS.items():
        if config.recipe == name and not short_name(config.method).startswith(name):
            return f"the recipe {name} is that of {parts}, and this run trains {config.method}; --set method={name}"
        if config.method == parts and config.recipe != name:
            chosen = flatten(RECIPES[name].table(config.data.name))
            missing = [f"{k} = {v}" for k, v in chosen.items() if k != "recipe" and table.get(k) != v]
            if missing:
                return f"{name} was chosen with {' and '.join(missing)}; '--recipe {name}' sets that"
    return None


def changes(recipe: str | None, set: Sequence[str] | None) -> list[str]:
    """Return the changes to a configuration: a bundle first, then single settings."""
    return [*([] if recipe is None else [f"recipe={json.dumps(recipe)}"]), *(set or ())]


def resume(folder: Annotated[Path, typer.Argument(metavar="DIR", help="run folder")]) -> None:
    """Continue an interrupted run; the outcome equals that of an uninterrupted one."""
    progress = RunProgress(console)
    with _stoppable(progress):
        result = resume_run(folder, (progress,))
        if progress.tasks == 0:
            console.print(f"{folder}: finished before, final accuracy {result['final_accuracy']:.2f} %")
        write_run_report(folder)


def rollback(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="run folder, of a simulation or of a server")],
    to: Annotated[str, typer.Option(metavar="TASK:ROUND", help="place to go back to, such as 2:5, or 1:end")],
) -> None:
    """Take a run back to an earlier round or the end of a task; resuming it repeats what came afterwards."""
    record = roll_back(folder, to)
    typer.echo(f"{folder}: {in_words(record)}")
    if RunFolder.open(folder).config().engine.name == "flower":
        typer.echo("start the server again to go on; clients follow if their policy allows it (most_rollbacks)")
    else:
        typer.echo(f"'fedfeat resume {folder}' goes on from there")


@contextmanager
def _stoppable(progress: RunProgress) -> Iterator[None]:
    """Leave the terminal as it was; after Ctrl-C in a run that has begun, say how to continue it."""
    try:
        yield
    except KeyboardInterrupt:
        progress.close()
        if progress.tasks == 0:
            raise
        print(f"stopped; 'fedfeat resume {progress.folder}' continues it", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        progress.close()


def compare(
    config: ConfigFile,
    methods: Annotated[str, typer.Option(help="comma-separated methods, or 'all'")] = COMPARED,
    seeds: Annotated[str, typer.Option(help="comma-separated seeds")] = "0,1,2",
    recipe: RecipeName = None,
    set: Overrides = None,
    plugin: Plugins = None,
    workers: Annotated[int, typer.Option(min=1, help="runs at once, each in a process of its own")] = 1,
    dry_run: DryRun = False,
    out: Annotated[Path, typer.Option(help="folder for the runs, the table and the report")] = Path("runs/compare"),
) -> None:
    """Run several methods on the same splits and report them side by side; what is finished is not run again."""
    runs = comparison_runs(load_config(config, changes(recipe, set), plugin or ()), methods, seeds, out)
    _run_and_compare(runs, out, make_pool(workers, None, None), dry_run)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=r"TOML file with a table \[sweep]")],
    recipe: RecipeName = None,
    set: Overrides = None,
    plugin: Plugins = None,
    workers: Workers = None,
    per_gpu: PerGPU = None,
    ray: RayAddress = None,
    dry_run: DryRun = False,
    out: Annotated[Path | None, typer.Option(help="folder of the runs; default runs/NAME of the file")] = None,
) -> None:
    """Run a grid of methods, seeds and settings; what is finished is not run again, a failure stops nothing."""
    folder = out or Path("runs") / file.stem
    configs = load_sweep(file, set or (), recipe, plugin or ())
    _run_and_compare(plan(configs, folder), folder, make_pool(workers, per_gpu, ray), dry_run)


def _run_and_compare(runs: Sequence[Planned], folder: Path, pool: RunPool, dry_run: bool) -> None:
    """Run what is missing, and report all runs of a folder side by side."""
    outcomes = dry.run_all(runs, console, pool, dry=dry_run)
    if any(outcome.result is not None for outcome in outcomes):
        write_comparison(folder, console)
    exit_if_failed(outcomes, console)


def make_pool(workers: int | None, per_gpu: int | None, ray: str | None) -> RunPool:
    """Return what ``--workers``, ``--per-gpu`` and ``--ray`` ask for."""
    if ray is not None:
        from fedfeat.runs.sweep.cluster import ray_cluster

        return ray_cluster(ray, workers=workers, per_gpu=per_gpu)
    if per_gpu is None:
        return processes(workers) if workers and workers > 1 else in_turn
    gpus = torch.cuda.device_count()
    if gpus == 0:
        raise FedfeatError("--per-gpu: there is no NVIDIA GPU on this machine; use --workers")
    return processes(workers or gpus * per_gpu, range(gpus))
