"""The command line: every error that is the user's to mend is one sentence and exit code 2."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from fedfeat import __version__
from fedfeat.cli import (
    bench,
    data,
    export,
    federation,
    keys,
    paper,
    predict,
    report,
    run,
    scenario,
    show,
    sweep,
    teacher,
    watch,
)
from fedfeat.core.errors import FedfeatError

CONTINUED = ("resume", "sweep", "compare", "paper")  # the same command again goes on where it was stopped


class Stoppable(TyperGroup):
    """Says on Ctrl-C how to go on; left to Typer, it would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            how = "; the same command continues" if ctx.invoked_subcommand in CONTINUED else ""
            print(f"stopped{how}", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="fedfeat",
    cls=Stoppable,
    help="Federated class-incremental learning: run, compare, look.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run.run)
app.command()(run.resume)
app.command()(run.compare)
app.command()(report.report)
app.command()(watch.watch)
app.command()(sweep.sweep)
app.command()(predict.predict)
app.command()(export.export)
app.command()(federation.federate)
app.command()(federation.server)
app.command()(federation.client)
app.command()(keys.keys)
app.command("list")(show.list_)
app.command()(show.doctor)
app.add_typer(bench.app, name="bench", help="Measure this machine.")
app.add_typer(data.app, name="data", help="Get, check and list data sets.")
app.add_typer(teacher.app, name="teacher", help="Encode a data set once with a local CLIP model.")
app.add_typer(paper.app, name="paper", help="The paper's tables and figures: run them, show them beside ours.")
app.add_typer(scenario.app, name="scenario", help="Show who sees what, and when.")


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="print the version"),
) -> None:
    if version:
        print(f"fedfeat {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        app()
    except FedfeatError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; check the path and its permissions", file=sys.stderr)
        sys.exit(2)
