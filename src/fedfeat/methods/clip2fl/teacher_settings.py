"""Settings of a teacher."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedfeat.core.settings import Settings

Live = Literal["open_clip", "transformers", "openai_clip"]
Backend = Literal["cache", "open_clip", "transformers", "openai_clip"]

WAYS = (
    "backend = cache with the file that `fedfeat teacher build` writes; backend = open_clip with a checkpoint or a "
    "folder; backend = transformers with the folder of a CLIP model; backend = openai_clip with the original .pt file"
)


class TeacherSettings(Settings):
    """Where the teacher comes from; nothing is ever downloaded."""

    backend: Backend | None = Field(
        None,
        description="cache: a file of features; or the package that loads a local CLIP: open_clip, transformers, "
        "openai_clip",
    )
    path: str | None = Field(None, description="cache file, checkpoint or folder; ~ and $VARIABLES are expanded")
    arch: str = Field(
        "ViT-B-32-quickgelu",
        description="architecture of an open_clip checkpoint; OpenAI's weights need a -quickgelu one",
    )
    prompt: str = Field("a photo of a {class}", description="what the text tower reads; {class} is the class name")
    device: str = Field("cpu", description="where a live teacher encodes: cpu, cuda")

    def location(self) -> Path | None:
        """Return ``path`` with ``~`` and environment variables expanded, or None when it is unset."""
        return None if self.path is None else Path(os.path.expandvars(self.path)).expanduser()
