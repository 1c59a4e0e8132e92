"""``fedfeat bench``: the benchmarks of the repository, which no installation carries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from fedfeat.core.errors import FedfeatError

app = typer.Typer(no_args_is_help=True)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def gpu(context: typer.Context) -> None:
    """Compare a bare loop, the in-process engine and engine cuda on this GPU: one table, ratios in one run."""
    script = BENCHMARKS / "gpu.py"
    if not script.is_file():
        raise FedfeatError(
            "bench: benchmarks are not part of an installation; get the repository and run: python benchmarks/gpu.py"
        )
    raise typer.Exit(subprocess.run([sys.executable, str(script), *context.args]).returncode)
