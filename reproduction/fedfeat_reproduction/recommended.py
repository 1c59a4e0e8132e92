"""The recipe of ours that we recommend: its method and settings are named here and nowhere else."""

from __future__ import annotations

METHOD = "replay+etf+balanced+distil"
SETTINGS: tuple[str, ...] = ("train.weight_decay=0.0005",)  # beyond those of a cell, as KEY=VALUE; or recipe="NAME"
