"""A process that runs experiments for another: a job per line of input, events and outcomes per line of output."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import IO, Any

from fedfeat.config import make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.sweep.outcome import Planned, attempt


def main() -> None:
    """Work until the input ends."""
    # Lines for the other process go to the original output; whatever else is printed must not mix with them.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            _say(answers, _work(json.loads(line), answers))


def _work(job: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    path = Path(job["path"])
    try:
        run = Planned(make_config(job["config"]), path)
    except FedfeatError as error:
        return {"event": "outcome", "result": None, "error": str(error)}
    with warnings.catch_warnings(record=True) as caught:
        outcome = attempt(run, (lambda event: _say(answers, event),))
    if caught:
        with (path / "warnings.txt").open("a") as file:
            file.writelines(f"{warning.message}\n" for warning in caught)
    return {"event": "outcome", "result": outcome.result, "error": outcome.error}


def _say(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
