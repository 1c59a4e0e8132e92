"""The configuration reference: every key, written from the settings models themselves."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from fedfeat.config.config import Config
from fedfeat.core.settings import Settings
from fedfeat.methods import PARTS, settings_tables

HEADER = """\
# Configuration

<!-- Written by `python -m reference_pages`; edit the descriptions in the code instead. -->

An experiment is one TOML file. Every key has a default, so an empty file is a valid experiment. Unknown keys and
values of the wrong kind are refused, all of them in one message. `--set KEY=VALUE` on the command line changes one
key, with its dotted name: `--set train.lr=0.1 --set feat.gsa.lambda=0`. The run folder receives the resolved file.

Methods have their settings in tables of their own, and a table that the chosen method does not read is checked but
has no effect. So one file can serve a comparison of several methods.
"""

_PLAIN_NAMES = {str: "string", int: "integer", float: "number", bool: "true or false"}
_LIMITS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


def configuration_reference() -> str:
    """Return the whole reference as Markdown."""
    sections = [HEADER, "## Top level\n", _rows(Config)]
    for name, model in configuration_tables():
        if "." not in name:
            sections.append(f"## `[{name}]`\n")
        else:
            sections.append(f"### `[{name}]`\n")
        sections += [_introduction(name, model), _rows(model)]
    return "\n".join(sections)


def configuration_tables() -> Iterator[tuple[str, type[Settings]]]:
    """Yield every table of a configuration with its dotted name: the common ones, then those of methods."""
    yield from _nested("", Config)
    for name, model in sorted(settings_tables().items()):
        yield name, model
        yield from _nested(f"{name}.", model)


def leaf_fields(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield every key of a table and of the tables inside it: dotted name, field, where its default comes from."""
    for key, field in model.model_fields.items():
        name, inner = f"{prefix}{field.alias or key}", _table_model(field)
        if inner is None:
            extra = field.json_schema_extra
            said = extra.get("origin") if isinstance(extra, dict) else None
            yield name, field, str(said or model.default_origin)
        else:
            yield from leaf_fields(inner, f"{name}.")


def markdown_row(*cells: str) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def default_words(field: FieldInfo) -> str:
    """Return a default as a file would write it."""
    value = field.get_default(call_default_factory=True, validated_data={})
    return "unset" if value is None else f"`{_toml(value)}`"


def type_words(annotation: Any) -> str:
    """Return a type in words a user of TOML understands."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _PLAIN_NAMES:
        return _PLAIN_NAMES[annotation]
    if origin is typing.Annotated:
        return type_words(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{_toml(choice)}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_words(a) for a in arguments if a is not type(None))
    if origin is tuple:
        words = type_words(arguments[0])
        return f"list of {words.replace('list', 'lists', 1) if words.startswith('list ') else words + 's'}"
    if origin is dict:
        return f"table of {type_words(arguments[1])}s"
    raise TypeError(f"the configuration reference has no words for the type {annotation!r}; add them here")


def _nested(prefix: str, model: type[Settings]) -> Iterator[tuple[str, type[Settings]]]:
    for key, field in model.model_fields.items():
        inner = _table_model(field)
        if inner is not None:
            name = f"{prefix}{field.alias or key}"
            yield name, inner
            yield from _nested(f"{name}.", inner)


def _table_model(field: FieldInfo) -> type[Settings] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _introduction(name: str, model: type[Settings]) -> str:
    readers = [f"`{part.name}`" for part in PARTS.values() if part.table == name]
    note = f" Read by {', '.join(readers)}." if readers else ""
    return f"{(model.__doc__ or '').strip()}{note}\n"


def _rows(model: type[Settings]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field in model.model_fields.items():
        # Config.parts holds the methods' tables, which a file writes at the top level.
        if _table_model(field) is None and not (model is Config and key == "parts"):
            cells = (f"`{field.alias or key}`", _type_cell(field), default_words(field), field.description or "")
            lines.append(markdown_row(*cells))
    return "\n".join(lines) + "\n"


def _type_cell(field: FieldInfo) -> str:
    limits = [
        words.format(f"{value:g}")
        for constraint in field.metadata
        for name, words in _LIMITS.items()
        if (value := getattr(constraint, name, None)) is not None
    ]
    return ", ".join([type_words(field.annotation), *limits])


def _toml(value: Any) -> str:
    """Write a default as TOML does; JSON is the same for everything that occurs."""
    return json.dumps(value)
