"""Settings of a text encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from fedfeat.core.files import expanded
from fedfeat.core.settings import Settings

Encoder = Literal[
    "ngrams", "gaussian", "random_orthogonal", "table", "open_clip", "transformers", "sentence-transformers"
]
PLACE = "{class}"  # where a prompt takes the class name


class TextSettings(Settings):
    """How class names become vectors."""

    encoder: Encoder = Field(
        "ngrams",
        description="ngrams: hashed character n-grams; gaussian: seeded anchors around a common mean; "
        "random_orthogonal: names without meaning; table: a file of features; the others: a local model",
    )
    path: str | None = Field(
        None,
        description="table: .npy or .safetensors file; local model: its folder or checkpoint; ~ and $VARIABLES count",
    )
    names: str | None = Field(
        None,
        description="class names of a table's rows: a .json list, a .txt with a name per line, cifar10, cifar100, or "
        "arrival (row i belongs to the i-th class of the run); unset: from the table or the .json beside it",
    )
    arch: str = Field(
        "ViT-B-32-quickgelu",
        description="architecture of an open_clip checkpoint; OpenAI's weights need a -quickgelu one",
    )
    dim: int = Field(512, ge=2, description="width of ngrams, gaussian and random_orthogonal; files bring their own")
    prompt: str = Field("a photo of a {class}", description="what a local model reads; {class} is the class name")
    seed: int = Field(0, ge=0, description="seed of the built-in encoders; the same in every run unless you change it")

    @field_validator("prompt")
    @classmethod
    def _names_the_class(cls, prompt: str) -> str:
        if PLACE not in prompt:
            raise ValueError(f"a prompt must say where the class name goes, with {PLACE}")
        return prompt

    def location(self) -> Path | None:
        """Return ``path`` with ``~`` and environment variables expanded, or None when it is unset."""
        return expanded(self.path)

    def prompts(self, names: tuple[str, ...]) -> list[str]:
        """Return what a local model reads for each class."""
        return [self.prompt.replace(PLACE, readable(name)) for name in names]


def readable(name: str) -> str:
    """Return a class name as a person would write it: ``aquarium_fish`` has two words."""
    return name.replace("_", " ").strip()
