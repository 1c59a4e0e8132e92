"""The base of every settings model: unknown keys are refused, values never change after they were read."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen group of settings; each field carries its meaning in ``description``."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    undecisive: ClassVar[frozenset[str]] = frozenset()  # keys on which a result does not depend
