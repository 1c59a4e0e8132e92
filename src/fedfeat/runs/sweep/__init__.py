"""Many experiments, none run twice: what is finished is read, what is begun is continued, what is missing is run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedfeat.config.config import Config
from fedfeat.runs.identity import folder_names
from fedfeat.runs.sweep.local import in_turn, processes
from fedfeat.runs.sweep.planned import Event, Planned, RunOutcome, RunPool, Watch, stored

__all__ = [
    "Event",
    "Planned",
    "RunOutcome",
    "RunPool",
    "Watch",
    "finish",
    "finish_planned",
    "in_turn",
    "plan",
    "processes",
]


def plan(configs: Iterable[Config], out: Path) -> list[Planned]:
    """Give each configuration its folder; equal configurations share one.

    A folder is known by the fingerprint at the end of its name. What stands before it depends on what else is planned,
    and was other in earlier versions.
    """
    wanted = list(configs)
    known = {path.name.rpartition("-")[2]: path for path in sorted(out.glob("*-*"), reverse=True) if path.is_dir()}
    return [
        Planned(config, known.get(name.rpartition("-")[2], out / name))
        for config, name in zip(wanted, folder_names(wanted), strict=True)
    ]


def finish(
    configs: Sequence[Config],
    out: Path,
    *,
    workers: int = 1,
    watch: Watch | None = None,
    pool: RunPool | None = None,
) -> list[RunOutcome]:
    """Run what is missing under ``out`` and return one outcome per configuration, in their order.

    Finished runs are never run again and interrupted ones are continued. A run that fails is reported in its outcome
    and does not stop the others. With ``workers`` above one, that many processes run at once.
    """
    return finish_planned(plan(configs, out), workers=workers, watch=watch, pool=pool)


def finish_planned(
    runs: Sequence[Planned], *, workers: int = 1, watch: Watch | None = None, pool: RunPool | None = None
) -> list[RunOutcome]:
    """Do the same for runs whose folders were chosen by the caller."""
    told: Watch = watch or (lambda run, event: None)
    unique = {run.path: run for run in runs}
    outcomes: dict[Path, RunOutcome] = {}
    for path, run in unique.items():
        done = stored(run)
        if done is not None:
            outcomes[path] = done
            told(run, {"event": "stored" if done.error is None else "failed", "outcome": done})
    missing = [run for path, run in unique.items() if path not in outcomes]
    chosen = pool or (processes(workers) if workers > 1 else in_turn)
    for outcome in chosen(missing, told):
        outcomes[outcome.path] = outcome
        event = "done" if outcome.error is None else "failed"
        told(unique[outcome.path], {"event": event, "outcome": outcome})
    return [outcomes[run.path] for run in runs]
