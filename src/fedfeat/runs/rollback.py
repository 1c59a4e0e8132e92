"""``fedfeat rollback``: a run folder goes back to an earlier checkpoint, and says that it did."""

from __future__ import annotations

import datetime
from pathlib import Path

from fedfeat.core.audit import AUDIT, AuditLog
from fedfeat.core.errors import CheckpointError
from fedfeat.core.files import remove_leftovers, sha256
from fedfeat.core.lock import lock_folder
from fedfeat.federation.rollback import Place, Rollback, add_rollback, read_place
from fedfeat.runs.folder import RunFolder


def roll_back(path: Path, to: str) -> Rollback:
    """Take a run back to a place that is kept; what it did afterwards is gone, and is repeated by a resume."""
    task, rounds = read_place(to)
    folder = RunFolder.open(path)
    config = folder.config()
    if config.engine.name == "flower" and config.privacy.secure_aggregation:
        raise CheckpointError(
            f"{path}: clients put a reply into one masked sum only (privacy.secure_aggregation), so no round of this "
            "federation can be repeated; start another run"
        )
    with lock_folder(path):
        remove_leftovers(path)
        kept = folder.checkpoints.kept()
        if not kept:
            raise CheckpointError(f"{path}: holds no whole checkpoint, so there is nothing to go back to")
        now = max(kept)
        found = [p for p in kept if p.task == task and (p.ended if rounds is None else p.rounds == rounds)]
        if not found:
            places = ", ".join(map(str, sorted(kept)))
            raise CheckpointError(
                f"{path}: {to} is not kept; kept are {places} (the ends of all tasks with run.keep_task_ends = true)"
            )
        return _go(folder, min(found), now, kept[min(found)])


def _go(folder: RunFolder, to: Place, now: Place, checkpoint: Path) -> Rollback:
    per_task = int(folder.events()[0]["rounds"])  # as the run began
    repeated = (now.task - to.task) * per_task + now.rounds - to.rounds
    federated = folder.config().engine.name == "flower"
    if federated and folder.result() is None:
        repeated += 1  # a round may have been under way, and its updates have left the clients
    record: Rollback = {
        "from": str(now),
        "to": str(to),
        "rounds": repeated,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    # The record comes first: after a kill a step that was not taken may be counted, never the other way round.
    add_rollback(folder.path, record)
    AuditLog(folder.path / AUDIT if federated else None).note("rollback", **record)
    folder.cut_events(folder.checkpoints.events_size(checkpoint))
    folder.append_event({"event": "rollback", **record})
    events = {"events_size": folder.events_size(), "events_sha256": sha256(folder.events_path)}
    folder.checkpoints.go_back(checkpoint, events)
    folder.result_path.unlink(missing_ok=True)
    folder.remove_models(after=to.task if to.ended else to.task - 1)
    return record
