"""Settings of a text encoder."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from fedfeat.core.settings import Settings, setting

Encoder = Literal[
    "ngrams", "gaussian", "random_orthogonal", "table", "open_clip", "transformers", "sentence-transformers"
]
PLACE = "{class}"  # where a prompt takes the class name


class TextSettings(Settings):
    """How class names become vectors."""

    default_origin = "a choice"

    encoder: Encoder = setting(
        "ngrams",
        "ngrams: hashed character n-grams; gaussian: seeded anchors around a common mean; "
        "random_orthogonal: names without meaning; table: a file of features; the others: a local model",
        origin="a choice that runs anywhere; a `table` takes published features, a local model CLIP's",
    )
    path: str | None = setting(
        None, "table: .npy or .safetensors file; local model: its folder or checkpoint; ~ and $VARIABLES count"
    )
    names: str | None = setting(
        None,
        "class names of a table's rows: a .json list, a .txt with a name per line, cifar10, cifar100, or "
        "arrival (row i belongs to the i-th class of the run); unset: from the table or the .json beside it",
    )
    arch: str = setting(
        "ViT-B-32-quickgelu", "architecture of an open_clip checkpoint; OpenAI's weights need a -quickgelu one"
    )
    dim: int = setting(
        512,
        "width of ngrams, gaussian and random_orthogonal; files bring their own",
        origin="width of the anchors that LANDER published",
        ge=2,
    )
    prompt: str = setting("a photo of a {class}", "what a local model reads; {class} is the class name")
    seed: int = setting(0, "seed of the built-in encoders; the same in every run unless you change it", ge=0)

    @field_validator("prompt")
    @classmethod
    def _names_the_class(cls, prompt: str) -> str:
        if PLACE not in prompt:
            raise ValueError(f"a prompt must say where the class name goes, with {PLACE}")
        return prompt

    def prompts(self, names: tuple[str, ...]) -> list[str]:
        """Return what a local model reads for each class."""
        return [self.prompt.replace(PLACE, readable(name)) for name in names]


def readable(name: str) -> str:
    """Return a class name as a person would write it: ``aquarium_fish`` has two words."""
    return name.replace("_", " ").strip()
