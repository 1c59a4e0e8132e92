"""One planned run and what becomes of it: a result, or one sentence that says why there is none."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.config.config import Config
from fedfeat.core.errors import CheckpointError, ConfigError, DataError, FedfeatError, TrainingDiverged
from fedfeat.core.files import write_atomically
from fedfeat.core.lock import lock_folder
from fedfeat.federation.loop import Listener
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, Result, go_on
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import refuse_other_folder

Event = dict[str, Any]
LASTING = (ConfigError, DataError, CheckpointError, TrainingDiverged)


@dataclass(frozen=True)
class Planned:
    """One experiment and the folder it belongs into."""

    config: Config
    path: Path


@dataclass(frozen=True)
class RunOutcome:
    """What became of one experiment: a result, or why there is none."""

    config: Config
    path: Path
    result: Result | None
    error: str | None = None
    lasting: bool = False  # the same run would fail again: its settings, its data or its folder have to change


Watch = Callable[[Planned, Event], None]  # is told every event of every run, and ``done`` or ``failed`` at its end
# Runs experiments somewhere and yields their outcomes as they come; a failure is an outcome too.
RunPool = Callable[[Sequence[Planned], Watch], Iterable[RunOutcome]]


def stored(run: Planned) -> RunOutcome | None:
    """Return the outcome of a run that finished before, an error for a folder of another run, None otherwise."""
    folder = RunFolder(run.path)
    if not folder.config_path.is_file():
        return None
    try:
        refuse_other_folder(folder, run.config)
    except FedfeatError as error:
        return RunOutcome(run.config, run.path, None, str(error), lasting=True)
    result = folder.result()
    return None if result is None else RunOutcome(run.config, run.path, result)


def attempt(run: Planned, listeners: tuple[Listener, ...] = ()) -> RunOutcome:
    """Run or continue one experiment; whatever goes wrong becomes its outcome."""
    try:
        return RunOutcome(run.config, run.path, run_or_resume(run.config, run.path, listeners))
    except FedfeatError as error:
        return RunOutcome(run.config, run.path, None, str(error), isinstance(error, LASTING))
    except Exception as error:
        write_atomically(run.path / "error.txt", traceback.format_exc().encode())
        first = (str(error).splitlines() or [""])[0]
        text = f"{run.path}: {type(error).__name__}: {first} (the whole story is in {run.path / 'error.txt'})"
        return RunOutcome(run.config, run.path, None, text)


def run_or_resume(config: Config, folder: Path, listeners: tuple[Listener, ...] = ()) -> Result:
    """Run what is missing, continue what was interrupted, return what is finished."""
    with lock_folder(folder):
        done = stored(Planned(config, folder))
        if done is not None and done.result is not None:
            return done.result
        if done is not None:
            raise CheckpointError(done.error)
        if RunFolder(folder).config_path.is_file():
            # Where a known data set lies may have changed since; everything else was compared.
            RunFolder(folder).write_config(config)
            result = go_on(RunFolder.open(folder), listeners)
        else:
            experiment = Experiment(config)
            result = experiment.run(experiment.new_folder(folder), Progress(), listeners)
        (folder / "error.txt").unlink(missing_ok=True)
        return result
