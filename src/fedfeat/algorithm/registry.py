"""Names of methods: ``base`` or ``base+addon+addon``, each a registered function that returns parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedfeat.algorithm.method import OF_TRAINING, Method, Prediction
from fedfeat.algorithm.sent import Sent
from fedfeat.core.errors import ConfigError, nearest
from fedfeat.core.settings import Settings


class NoSettings(Settings):
    """A part without settings."""


@dataclass(frozen=True)
class Part:
    """A registered base or add-on."""

    name: str
    kind: str  # "base" or "add-on"
    table: str  # the table of the configuration that holds its settings
    settings: type[Settings]
    build: Callable[..., Method]
    summary: str
    sends: tuple[Sent, ...] = ()  # what crosses because of it, whatever its settings
    prediction: type[Prediction] | None = None  # the class of what it predicts with, if it does
    examples: tuple[str, ...] = ()  # compositions worth naming in lists, comparisons and tests
    reads: tuple[str, ...] = ("*",)  # keys of a shared table that it reads, as patterns


PARTS: dict[str, Part] = {}
ALIASES: dict[str, str] = {}  # other names of parts and compositions; records and folders have the parts' own


def base(
    name: str,
    settings: type[Settings] = NoSettings,
    *,
    sends: tuple[Sent, ...] = (),
    prediction: type[Prediction] | None = None,
    aliases: tuple[str, ...] = (),
) -> Callable[[Callable[[Any], Method]], Callable[[Any], Method]]:
    """Register ``function(settings) -> Method`` as a base method that sends certain entries."""

    def register(function: Callable[[Any], Method]) -> Callable[[Any], Method]:
        ALIASES.update(dict.fromkeys(aliases, name))
        PARTS[name] = Part(name, "base", name, settings, function, _summary(function), sends, prediction)
        return function

    return register


def addon(
    name: str,
    settings: type[Settings] = NoSettings,
    *,
    table: str | None = None,
    sends: tuple[Sent, ...] = (),
    prediction: type[Prediction] | None = None,
    examples: tuple[str, ...] = (),
    reads: tuple[str, ...] = ("*",),
) -> Callable[[Callable[[Method, Any], Method]], Callable[[Method, Any], Method]]:
    """Register ``function(method, settings) -> Method`` as an add-on; several may share one settings table."""

    def register(function: Callable[[Method, Any], Method]) -> Callable[[Method, Any], Method]:
        summary = _summary(function)
        PARTS[name] = Part(
            name, "add-on", table or name, settings, function, summary, sends, prediction, examples, reads
        )
        return function

    return register


def settings_tables() -> dict[str, type[Settings]]:
    """Return the settings model of every table that some part reads."""
    return {p.table: p.settings for p in PARTS.values() if p.settings is not NoSettings}


def all_methods() -> list[str]:
    """Return every base and the usual compositions."""
    return [*(p.name for p in PARTS.values() if p.kind == "base"), *example_methods()]


def example_methods() -> list[str]:
    """Return the compositions that add-ons name as worth knowing."""
    return [example for part in PARTS.values() for example in part.examples]


def declared_labels(spec: str) -> list[str]:
    """Return what the predictions of a method's parts are called, the last one in force; unknown parts say nothing."""
    parts = (PARTS.get(name.strip()) for name in spec.split("+"))
    return [part.prediction.label for part in parts if part is not None and part.prediction is not None]


def canonical(spec: str) -> str:
    """Return a method's parts by their own names: ``FedAvg + fedprox`` names the base by an alias."""
    names = (name.strip() for name in spec.split("+"))
    return "+".join(name if name in PARTS else ALIASES.get(name.lower(), name) for name in names)


def parts_of(spec: str) -> list[Part]:
    """Split ``base+addon`` and look the names up; an unknown name is answered with the nearest one."""
    names = canonical(spec).split("+")
    for name in names:
        if name not in PARTS:
            raise ConfigError(
                f"method: no method or add-on is called {name!r} (in {spec!r}); {nearest(name, {*PARTS, *ALIASES})}"
            )
    first, *rest = (PARTS[n] for n in names)
    if first.kind != "base":
        bases = ", ".join(part.name for part in PARTS.values() if part.kind == "base")
        raise ConfigError(
            f"method: {spec!r} must start with a base method, and {first.name!r} is an add-on; bases: {bases}"
        )
    for part in rest:
        if part.kind != "add-on":
            raise ConfigError(f"method: {part.name!r} in {spec!r} is a base method; only add-ons may follow a '+'")
    if len(set(names)) != len(names):
        raise ConfigError(f"method: {spec!r} names a part twice; name each once")
    return [first, *rest]


def compose(spec: str, tables: Mapping[str, Settings]) -> Method:
    """Build a method from its name and the settings tables of the configuration."""
    method, before = Method(""), ""
    for part in parts_of(spec):
        settings = tables.get(part.table) or part.settings()
        method = part.build(settings) if part.kind == "base" else _with_addon(method, part, settings)
        name = method.name if part.kind == "base" else f"{before}+{part.name}"
        declared = {s.name: s for s in part.sends if s.up and (s.when is None or s.when(settings))}
        method, before = replace(method, name=name, sends={**method.sends, **declared}), name
    return method


def _with_addon(method: Method, part: Part, settings: Settings) -> Method:
    """Put an add-on on a method; one that works on training is refused where there is none."""
    changed: Method = part.build(method, settings)
    if not method.trains and any(getattr(changed, name) != getattr(method, name) for name in OF_TRAINING):
        raise ConfigError(
            f"method: {part.name} changes how clients train, and {method.name!r} does not train them; leave it out"
        )
    return changed


def _summary(function: Callable[..., Method]) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]
