"""The command line: a command is imported when it is called, and a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from fedfeat import __version__
from fedfeat.core.errors import FedfeatError

CONTINUED = ("resume", "sweep", "queue", "compare", "paper")  # the same command again goes on where it was stopped
# Where each command is, as module:name below this package, and its line in the help.
COMMANDS = {
    "run": ("run:run", "Run an experiment."),
    "resume": ("run:resume", "Continue an interrupted run; the outcome equals that of an uninterrupted one."),
    "rollback": (
        "run:rollback",
        "Take a run back to an earlier round or the end of a task; resuming it repeats what came afterwards.",
    ),
    "compare": (
        "run:compare",
        "Run several methods on the same splits and report them side by side; what is finished is not run again.",
    ),
    "report": ("report:report", "Compare finished runs: print a table and write one HTML page that works offline."),
    "watch": (
        "report:watch",
        "Show runs while they go on: a page on this machine that updates by itself; runs never wait for it.",
    ),
    "sweep": (
        "run:sweep",
        "Run a grid of methods, seeds and settings; what is finished is not run again, a failure stops nothing.",
    ),
    "queue": (
        "queue:queue",
        "Run a list of experiments in one process, as many as fit into a time; what is finished is not run again.",
    ),
    "predict": (
        "predict:predict",
        "Say what a trained model sees in images; one that cannot be read is named, and the others go on.",
    ),
    "export": (
        "predict:export",
        "Write a trained model with its normalisation and correction to one file, checked by the format's own runtime.",
    ),
    "federate": (
        "federation:federate",
        "Run an experiment on this machine with a server and clients as real processes.",
    ),
    "server": (
        "federation:server",
        "Run an experiment with clients that connect from elsewhere; continues what the run folder holds.",
    ),
    "client": (
        "federation:client",
        "Take part in a federation: connect, wait for work, keep the data here. Runs until it is stopped.",
    ),
    "keys": (
        "keys:keys",
        "Make keys of clients, a certificate authority and a server certificate; revoke or renew keys.",
    ),
    "new": ("author:new", "Write a method of your own to start from."),
    "check": ("author:check", "Hold a method of your own to the contract, and say what fails and where."),
    "list": ("show:list_", "List methods, data sets, presets or recipes."),
    "doctor": ("show:doctor", "Say what is installed, which devices and data there are, and what is missing."),
    "bench": ("show:bench", "Measure this machine."),
    "data": ("data:app", "Get, check and list data sets."),
    "teacher": ("teacher:app", "Encode a data set once with a local CLIP model."),
    "paper": ("paper:app", "The paper's tables and figures: run them, show them beside ours."),
    "scenario": ("show:scenario", "Show who sees what, and when."),
}


class CommandsByName(TyperGroup):
    """Imports a command's module when it is called: the help names them all and loads none of them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that was named, and load it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load_command(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; on Ctrl-C say how to go on, where Typer would end without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            how = "; the same command continues" if ctx.invoked_subcommand in CONTINUED else ""
            print(f"stopped{how}", file=sys.stderr)
            raise typer.Exit(130) from None


def load_command(name: str) -> Any:
    """Import a command, or a group of them, by its name."""
    place, line = COMMANDS[name]
    module, attribute = place.split(":")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name, group.help = name, line
        return group
    single = typer.Typer(add_completion=False)
    single.command(name)(found)
    return get_command(single)


app = typer.Typer(
    name="fedfeat",
    cls=CommandsByName,
    help="Federated class-incremental learning: run, compare, look.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="print the version"),
) -> None:
    if version:
        print(f"fedfeat {__version__}")
        raise typer.Exit


def _tell_of_data() -> None:
    """Print what decoding a large data set needs, before it begins."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: print(record.getMessage(), file=sys.stderr)  # type: ignore[method-assign]
    log = logging.getLogger("fedfeat.data")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)


def main() -> None:
    """Run the command line."""
    _tell_of_data()
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
