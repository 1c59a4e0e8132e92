"""``fedfeat sweep``: a grid of experiments, each run once, on this machine or on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from fedfeat.cli.report import write_comparison
from fedfeat.cli.sweep_progress import exit_if_failed, finish_all
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.sweep import plan
from fedfeat.runs.sweep.grid import load_sweep
from fedfeat.runs.sweep.local import in_turn, processes
from fedfeat.runs.sweep.outcome import Pool

console = Console(highlight=False, soft_wrap=True, markup=False)

Workers = Annotated[int | None, typer.Option(min=1, help="runs at once on this machine; default 1")]
PerGPU = Annotated[int | None, typer.Option(min=1, help="runs that share a card; uses every card there is")]
RayAddress = Annotated[str | None, typer.Option(metavar="ADDRESS", help="run on a Ray cluster; 'local' starts one")]


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file with a table [sweep]")],
    set: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting")] = None,
    workers: Workers = None,
    per_gpu: PerGPU = None,
    ray: RayAddress = None,
    out: Annotated[Path | None, typer.Option(help="folder of the runs; default runs/NAME of the file")] = None,
) -> None:
    """Run a grid of methods, seeds and settings; what is finished is not run again, a failure stops nothing."""
    folder = out or Path("runs") / file.stem
    configs = load_sweep(file, set or ())
    pool = make_pool(workers, per_gpu, ray)
    outcomes = finish_all(plan(configs, folder), console, pool=pool)
    if any(outcome.result is not None for outcome in outcomes):
        write_comparison(folder, console)
    exit_if_failed(outcomes, console)


def make_pool(workers: int | None, per_gpu: int | None, ray: str | None) -> Pool:
    """Return what ``--workers``, ``--per-gpu`` and ``--ray`` ask for."""
    if ray is not None:
        from fedfeat.runs.sweep.cluster import ray_cluster

        return ray_cluster(ray, workers=workers, per_gpu=per_gpu)
    if per_gpu is None:
        return processes(workers) if workers and workers > 1 else in_turn
    cards = torch.cuda.device_count()
    if cards == 0:
        raise FedfeatError("--per-gpu: there is no NVIDIA card on this machine; use --workers")
    return processes(workers or cards * per_gpu, range(cards))
