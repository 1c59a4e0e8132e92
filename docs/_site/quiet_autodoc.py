"""A Sphinx extension: leave out what autodoc says about classes and no reader asks for."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

GENERATED = ("Alias for field number",)  # what Python writes for a field of a named tuple


def skip(app: Sphinx, what: str, name: str, member: object, skip: bool, options: Any) -> bool | None:
    """Skip pydantic's own attributes; None leaves the choice to autodoc."""
    return True if name == "model_config" else None


def signature(app: Sphinx, what: str, name: str, thing: object, *rest: Any) -> tuple[str, None] | None:
    """Settings are made from tables, and listed in the configuration reference: no signature of fifty keys."""
    is_settings = isinstance(thing, type) and issubclass(thing, BaseModel)
    return ("", None) if is_settings else None


def docstring(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Drop sentences that say nothing."""
    lines[:] = [line for line in lines if not line.startswith(GENERATED)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring)
    return {"parallel_read_safe": True}
