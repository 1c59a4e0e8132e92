"""The composition that we recommend, and the settings it is recommended with: they are named here and nowhere else."""

from __future__ import annotations

from fedfeat.config.presets import COMPOSITIONS

NAME = "fedfeat"  # of the composition and of its recipe
METHOD = COMPOSITIONS[NAME]
SETTINGS: tuple[str, ...] = (f'recipe="{NAME}"',)  # beyond those of a cell, as KEY=VALUE
