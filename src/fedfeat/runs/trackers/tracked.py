"""Which trackers a run has: opened when it begins, closed however it ends."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

from fedfeat.config import Config
from fedfeat.core.files import write_json
from fedfeat.runs.trackers.mlflow import MLflowMirror
from fedfeat.runs.trackers.tensorboard import TensorBoardMirror
from fedfeat.runs.trackers.tracker import MirrorThread, Opener
from fedfeat.runs.trackers.wandb import WandbMirror

OPENERS: dict[str, Opener] = {"tensorboard": TensorBoardMirror, "wandb": WandbMirror, "mlflow": MLflowMirror}


@contextlib.contextmanager
def tracked(config: Config, folder: Path) -> Iterator[tuple[MirrorThread, ...]]:
    """Yield a listener for each tracker that the configuration asks for; they are closed however the run ends."""
    wanted = [name for name in OPENERS if getattr(config.tracker, name)]
    identity = _identity(folder) if wanted else ""
    threads = tuple(MirrorThread(name, OPENERS[name], config, folder, identity) for name in wanted)
    try:
        yield threads
    finally:
        for thread in threads:
            thread.close()


def _identity(folder: Path) -> str:
    """Return the run's name among trackers, drawn when it begins and found again when it is resumed."""
    path = folder / "mirror.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(path.read_text())["id"])
    identity = uuid.uuid4().hex[:12]
    write_json(path, {"id": identity})
    return identity
