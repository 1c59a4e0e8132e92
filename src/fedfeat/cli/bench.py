"""Measure this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfeat.data import load_dataset
from fedfeat.data.settings import DataSettings

app = typer.Typer(no_args_is_help=True)


@app.command()
def gpu(
    data: Annotated[
        Path | None, typer.Option(help="CIFAR-10 on disk; default is where 'fedfeat data get' puts it")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16")] = "bf16",
    out: Annotated[Path | None, typer.Option(help="also write the figures, hardware and versions as JSON")] = None,
) -> None:
    """Compare a bare loop, the in-process engine and engine cuda on this card: one table, ratios in one run."""
    from fedfeat.bench.gpu import GpuBench, need_gpu, table

    need_gpu()
    dataset = load_dataset(DataSettings(name="cifar10", path=str(data) if data else None))
    bench = GpuBench(dataset, precision=precision, out=out, say=lambda line: typer.echo(line, err=True))
    typer.echo(table(bench.run()))
