"""TensorBoard: event files in the run folder; ``tensorboard --logdir runs`` shows them."""

from __future__ import annotations

from fedfeat.core.errors import MissingExtra
from fedfeat.runs.trackers.scalars import Scalars
from fedfeat.runs.trackers.tracker import MirroredRun


class TensorBoardMirror:
    """Writes scalars, and the configuration as text."""

    def __init__(self, run: MirroredRun) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", "tensorboard", "the tracker to TensorBoard") from error
        # What was written after the checkpoint that a run resumes from is written again.
        purge = run.first_step + 1 if run.resumed else None
        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        indented = "\n".join(f"    {line}" for line in run.config.to_toml().splitlines())
        self.writer.add_text("config", indented, run.first_step)

    def log(self, step: int, values: Scalars) -> None:
        """Write one event's numbers."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """Close the event file."""
        self.writer.close()
