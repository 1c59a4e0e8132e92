"""Settings of the data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedfeat.settings import Settings


class DataSettings(Settings):
    """Which images a run learns from, and where they lie."""

    name: str = Field(
        default="digits",
        description="digits, cifar10, cifar100, tiny-imagenet, or parquet, npz, folder for your own images",
    )
    path: str | None = Field(
        default=None,
        description="folder, archive or file with the data; ~ and $VARIABLES are expanded; "
        "unset: $FEDFEAT_DATA, then the folder that `fedfeat data get` fills",
    )
    subset_classes: int | None = Field(
        default=None,
        ge=1,
        description="keep this many classes, drawn with the seed; unset: 50 for tiny-imagenet, all otherwise",
    )
    augment: Literal["auto", "none", "crop-flip"] = Field(
        default="auto",
        description="auto: what is usual for the data set (nothing for your own); none; or crop-flip",
    )

    def location(self) -> Path | None:
        """Return ``path`` with ``~`` and environment variables expanded, or None when it is unset."""
        return None if self.path is None else Path(os.path.expandvars(self.path)).expanduser()
