"""``fedfeat rollback``: a run goes back to an earlier place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfeat.federation.rollback import in_words
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.rollback import roll_back


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
