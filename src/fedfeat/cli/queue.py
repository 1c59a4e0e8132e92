"""``fedfeat queue``: runs in the order of their value, one after another in one process, as many as fit into a time."""

from __future__ import annotations

import argparse
import shlex
import time
from math import nan
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedfeat.cli.progress import SweepProgress, console, exit_if_failed
from fedfeat.cli.run import changes
from fedfeat.config.config import load_config
from fedfeat.core.errors import ConfigError
from fedfeat.runs.identity import tell_apart
from fedfeat.runs.sweep import Planned, RunOutcome, finish_planned, plan
from fedfeat.runs.sweep.planned import stored
from fedfeat_reproduction.records import read_records, record_of_run, write_record
from fedfeat_reproduction.results import RecordIndex


def queue(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a line per run: its seconds, then 'run CONFIG ...'")],
    limit: Annotated[
        float, typer.Option(help="seconds in all; a run that no longer fits is left for later", show_default="none")
    ] = 1e9,
    out: Annotated[Path, typer.Option(help="folder of the runs")] = Path("runs/queue"),
    results: Annotated[Path, typer.Option(help="folder of records; what has one is not run")] = Path("results"),
    record: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGES", help="record every run as it ends; says where the images came from, how lossless"
        ),
    ] = None,
) -> None:
    """Run a list of experiments in one process, as many as fit into a time; what is finished is not run again."""
    began = time.monotonic()
    queued = read_queue(file, out)
    known = RecordIndex(read_records(results))
    entries = [(seconds, run) for seconds, run in queued if not known.knows(run.config)]
    names = tell_apart([run.config for _, run in entries])
    outcomes: list[RunOutcome] = []
    left = 0
    with SweepProgress(console, {run.path: n for (_, run), n in zip(entries, names, strict=True)}) as progress:
        for seconds, run in entries:
            remaining = max(limit - (time.monotonic() - began), 0.0)
            if remaining < seconds and stored(run) is None:
                left += 1
                console.print(f"left for later, {remaining:.0f} s remain: {run.path.name}", style="dim")
            else:
                outcomes += finish_planned([run], watch=progress)
                if record is not None and outcomes[-1].result is not None:
                    write_record(record_of_run(run.path, f"{run.config.data.name}, {record}"), results)
    counts = {"left for later": left, f"with a record in {results}": len(queued) - len(entries)}
    console.print(", ".join([progress.summary(), *(f"{n} {what}" for what, n in counts.items() if n)]))
    exit_if_failed(outcomes, console)


def read_queue(path: Path, out: Path) -> list[tuple[float, Planned]]:
    """Return the runs of a queue and the seconds that each may take; every line is checked before anything runs."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a text file with a line per run, such as '90 run cifar10-5'")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 ({error}); give one with a line per run") from None
    found = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}; end every quotation where it began") from None
        if words:
            found.append(_entry(words, where, out))
    return found


def _entry(words: list[str], where: str, out: Path) -> tuple[float, Planned]:
    try:
        seconds = float(words[0])
    except ValueError:
        seconds = nan
    if not seconds > 0:
        raise ConfigError(f"{where}: expected the seconds that a run may take, got {words[0]!r}")
    parser = _Parser(where)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("config", type=Path)
    parser.add_argument("--recipe")
    parser.add_argument("--set", action="append")
    parser.add_argument("--plugin", action="append", type=Path)
    given = parser.parse_args(words[1:])
    try:
        config = load_config(given.config, changes(given.recipe, given.set), given.plugin or ())
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    (run,) = plan([config], out)
    return seconds, run


class _Parser(argparse.ArgumentParser):
    """Reads the options of one line; a mistake is one sentence."""

    def __init__(self, where: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.where = where

    def error(self, message: str) -> NoReturn:
        """Refuse the line."""
        raise ConfigError(f"{self.where}: {message}; write a line such as '90 run cifar10-5 --set train.rounds=40'")
