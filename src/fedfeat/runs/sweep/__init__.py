"""Many experiments, none run twice: a store of run folders, and pools that fill it."""

from fedfeat.runs.sweep.outcome import Event, Outcome, Planned, Watch
from fedfeat.runs.sweep.store import finish, finish_planned, plan

__all__ = ["Event", "Outcome", "Planned", "Watch", "finish", "finish_planned", "plan"]
