"""The base of every settings model: unknown keys are refused, values never change after they were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Settings(BaseModel):
    """A frozen group of settings; each field carries its meaning in ``description``."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)
    default_origin: ClassVar[str] = ""  # where the defaults of a method's settings come from, unless a field says so

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number: pydantic would read ``cutout = true`` as 1, which hides whole images."""
        kind = cls.model_fields[info.field_name or ""].annotation
        kinds = {kind, *get_args(kind)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError(f"input should be a number, got {str(value).lower()}")
        return value


def setting(default: Any, description: str, *, origin: str = "", **limits: Any) -> Any:
    """Declare a key of a method's settings: its default, what it means and where the default comes from.

    :param limits: whatever pydantic's ``Field`` knows, such as ``ge`` or ``alias``.
    """
    return Field(default, description=description, json_schema_extra={"origin": origin}, **limits)


def merge(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with those of ``b`` on top."""
    merged = dict(a)
    for key, value in b.items():
        old = merged.get(key)
        merged[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; an empty table says nothing."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat
