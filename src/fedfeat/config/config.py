"""One experiment as data: read from TOML, checked as a whole, written back resolved."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.settings import PrivacySettings, TrainSettings
from fedfeat.config.plugins import load_installed, load_plugins
from fedfeat.config.presets import COMPOSITIONS, METHOD, PRESETS
from fedfeat.config.recipes import dataset_of, with_recipe
from fedfeat.config.renamed import with_new_names
from fedfeat.config.settings import EngineSettings, FederationSettings, RunSettings, TrackerSettings
from fedfeat.core.errors import ConfigError, closest, nearest
from fedfeat.core.settings import Settings, merge
from fedfeat.data.settings import OWNED, DataSettings
from fedfeat.methods import ALIASES, canonical, compose, parts_of, settings_tables
from fedfeat.models import ModelSettings
from fedfeat.scenario.settings import ScenarioSettings

Table = dict[str, Any]
S = TypeVar("S", bound=Settings)
MOST_HINTS = 3  # keys of the same name that are suggested
# What pydantic calls the kinds of a value, and what TOML does.
KINDS = {"a valid tuple": "a list", "a valid dictionary": "a table", "a valid list": "a list", "a valid set": "a list"}

ALIASES.update(COMPOSITIONS)


class Config(Settings):
    """A complete experiment: data set, scenario, method, model, training, engine."""

    method: str = Field(METHOD, description="base method and add-ons, joined by '+'")
    seed: int = Field(2023, ge=0, description="every random draw derives from it")
    recipe: str | None = Field(
        None, description="bundle of settings that `--recipe` laid over this configuration; here it is a name alone"
    )
    plugins: tuple[str, ...] = Field(
        (), description="Python files with methods of your own; relative paths count from this file"
    )
    data: DataSettings = Field(default_factory=DataSettings, description="the images")
    scenario: ScenarioSettings = Field(default_factory=ScenarioSettings, description="who sees what, and when")
    model: ModelSettings = Field(default_factory=ModelSettings, description="the network")
    train: TrainSettings = Field(default_factory=TrainSettings, description="local training and averaging")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="where clients are run")
    federation: FederationSettings = Field(
        default_factory=FederationSettings, description="deadline and quorum of the exchange with clients"
    )
    privacy: PrivacySettings = Field(
        default_factory=PrivacySettings, description="what clients do to their updates before they send them"
    )
    run: RunSettings = Field(default_factory=RunSettings, description="what the run leaves behind")
    tracker: TrackerSettings = Field(default_factory=TrackerSettings, description="copies of its numbers elsewhere")
    parts: dict[str, Settings] = Field(default_factory=dict, description="settings tables of methods, by name")

    @field_validator("method")
    @classmethod
    def _without_aliases(cls, spec: str) -> str:
        return canonical(spec)

    @model_validator(mode="after")
    def _owned_and_named_go_together(self) -> Self:
        if (self.data.name == OWNED) != (self.scenario.task_names is not None):
            raise ValueError(
                f"data.name = {OWNED!r} and scenario.task_names go together: a client's images are found by the names "
                "of their classes; set both or neither"
            )
        return self

    @model_validator(mode="after")
    def _captured_steps_are_alike(self) -> Self:
        if self.engine.name == "cuda" and any(self.scenario.lag.values()):
            raise ValueError(
                "scenario.lag and engine.name = 'cuda' exclude each other: that engine captures one training step for "
                "all clients, and with lag their old classes differ; use engine.name = 'inprocess'"
            )
        return self

    def build_method(self) -> Method:
        """Compose the method; contradictions between its parts are refused here."""
        return compose(self.method, self.parts)

    def to_table(self) -> Table:
        """Return the resolved configuration as nested tables, method tables at the top level."""
        table = self.model_dump(by_alias=True, exclude_none=True, exclude={"parts"})
        for name in ("plugins", "privacy"):
            if not table[name]:
                del table[name]
        used = {p.table: p.settings for p in parts_of(self.method)}
        for name, model in used.items():
            settings = self.parts.get(name) or model()
            if type(settings).model_fields:
                table[name] = settings.model_dump(by_alias=True, exclude_none=True)
        return table

    def to_toml(self) -> str:
        """Return the resolved configuration as TOML."""
        import tomli_w  # only to write: reading a configuration needs nothing besides pydantic

        return tomli_w.dumps(self.to_table())


def load_config(path: Path, overrides: Sequence[str] = (), plugins: Sequence[Path] = ()) -> Config:
    """Read a TOML file (or the name of a preset), add plugins and apply ``a.b=c`` overrides."""
    if path.is_file():
        table = read_toml(path)
        if "sweep" in table:
            raise ConfigError(f"{path}: has a table [sweep], so it is many runs; run them with 'fedfeat sweep {path}'")
        return make_config(with_plugins(table, plugins), overrides, where=str(path), folder=path.parent)
    if str(path) in PRESETS:
        return make_config(with_plugins(PRESETS[str(path)].table(), plugins), overrides, where=f"preset {path}")
    raise ConfigError(
        f"{path}: no such configuration file, and no preset of that name; {nearest(str(path), PRESETS)} "
        "(fedfeat list presets shows them)"
    )


def read_toml(path: Path) -> Table:
    """Read a file; one that is not TOML is refused in one sentence."""
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a valid TOML file ({error})") from error


def make_config(
    table: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    where: str = "configuration",
    folder: Path | None = None,
) -> Config:
    """Check nested tables as a whole; every problem is named at once.

    Plugins are loaded first, those with a relative path from ``folder`` (the current one by default).
    """
    config = parse_config(table, overrides, where=where, folder=folder)
    method = config.build_method()
    check_privacy(config.privacy, config.model, method)
    check_scenario(config.scenario, method)
    if config.privacy.secure_aggregation:
        check_sums(config.privacy, config.train, method)
    return config


def check_scenario(settings: ScenarioSettings, method: Method) -> None:
    """Refuse a method that cannot follow the stream of images."""
    for stream in settings.streams():
        if (reason := method.refusal(stream)) is not None:
            key = "brings = 'domains'" if stream == "domains" else stream
            raise ConfigError(
                f"scenario.{key}: {method.name!r} cannot follow it: {reason}; choose another method or setting of it"
            )


def check_sums(settings: PrivacySettings, train: TrainSettings, method: Method) -> None:
    """Refuse what cannot work where the server sees sums over clients alone."""
    if train.robust != "none":
        raise ConfigError(
            f"train.robust: {train.robust} compares single replies, and under privacy.secure_aggregation the server "
            "sees their sum alone; leave one of the two out"
        )
    for name, sent in method.sends.items():
        if not sent.summed:
            raise ConfigError(
                f"privacy.secure_aggregation: the server reads {name!r} of {method.name} client by client "
                f"({sent.meaning}), and would see sums over clients alone; choose a method whose replies add up, or "
                "leave secure_aggregation out"
            )
    if train.aggregation == "samples" and settings.bits != 64:
        raise ConfigError(
            "train.aggregation: masked updates weighted by samples do not fit into 32 bits; set privacy.bits = 64, or "
            "train.aggregation = 'uniform'"
        )


def check_privacy(settings: PrivacySettings, model: ModelSettings, method: Method) -> None:
    """Refuse what would protect nothing: no update to clip, or the same thing also leaves without noise."""
    if settings.clip is not None and not method.trains:
        raise ConfigError(
            f"privacy.clip: {method.name!r} trains nothing, so there is no update to clip; leave [privacy] out"
        )
    if settings.noise is None:
        return
    if model.averages_statistics:
        remedy = "leave model.tune = 'all' out" if model.pretrained else "set model.norm = 'group'"
        raise ConfigError(f"privacy.noise: BatchNorm's running statistics would leave clients without noise; {remedy}")
    for name, sent in method.sends.items():
        if sent.reveals_update:
            raise ConfigError(
                f"privacy.noise: {method.name} also sends {name!r}, and {sent.reveals_update}; "
                "leave noise out, or use another method"
            )


def parse_config(
    table: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    where: str = "configuration",
    folder: Path | None = None,
) -> Config:
    """Check the settings alone: their method is not built, so what it would read need not be on this machine."""
    merged = with_new_names(table, where=where)
    given: dict[str, str] = {}
    changes = [with_new_names(parse_override(override), where="--set") for override in overrides]
    for place, change in enumerate(changes):
        recipe = change.get("recipe")
        changed = merge(merged, change)
        if recipe is not None:
            changed = with_recipe(merged, str(recipe), dataset_of(merged, *changes[place:]))
        given |= dict.fromkeys(differing_keys(merged, changed), "--set" if recipe is None else f"--recipe {recipe}")
        merged = changed
    load_installed(reserved=Config.model_fields)
    if _is_list_of_strings(merged.get("plugins")):
        merged["plugins"] = load_plugins(merged["plugins"], folder or Path(), reserved=Config.model_fields)
    problems: list[str] = []
    tables = settings_tables()
    parts = {k: check_table(tables[k], merged.pop(k), where, problems, k, given) for k in tables if k in merged}
    config = check_table(
        Config, {**merged, "parts": {k: v for k, v in parts.items() if v}}, where, problems, given=given
    )
    if problems or config is None:
        raise ConfigError("; ".join(problems))
    return config


def check_table(
    model: type[S], table: Any, where: str, problems: list[str], name: str = "", given: Mapping[str, str] | None = None
) -> S | None:
    """Return a table's settings; what is wrong with them is added to ``problems``, a sentence each.

    :param given: dotted keys that were given elsewhere, such as with ``--set``, which is then named for ``where``.
    """
    try:
        return model.model_validate(table)
    except ValidationError as error:
        problems += [_sentence(where, e, model, name, given or {}) for e in error.errors()]
        return None


def with_plugins(table: Table, plugins: Sequence[Path]) -> Table:
    """Return a table that also names some files of methods."""
    named = table.get("plugins", [])
    if not plugins or not _is_list_of_strings(named):
        return table
    return {**table, "plugins": [*named, *(str(p.absolute()) for p in plugins)]}


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


def parse_override(text: str) -> Table:
    """Turn ``train.lr=0.1`` into ``{"train": {"lr": 0.1}}``; a value that is not TOML is taken as a string."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {text!r}: expected KEY=VALUE such as train.lr=0.1")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return nested(key.strip(), parsed)


def nested(key: str, value: Any) -> Table:
    """Return the tables around one value: ``{"train": {"lr": 0.1}}`` for ``train.lr``."""
    name, _, rest = key.partition(".")
    return {name: nested(rest, value) if rest else value}


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys in which two nested tables differ."""
    keys = []
    for name in sorted({*a, *b}):
        left, right = a.get(name), b.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            keys += differing_keys(left, right, f"{prefix}{name}.")
        elif left != right:
            keys.append(prefix + name)
    return keys


def _sentence(where: str, error: Any, model: type[Settings], table: str, given: Mapping[str, str]) -> str:
    """Say in one clause which key is wrong, what was expected and what came."""
    path = [str(p) for p in error["loc"]]
    name = ".".join([table, *path] if table else path) or "configuration"
    for key, source in given.items():
        if f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}."):
            where = source
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {name!r}; {_nearest_key(name.split('.'), _known_keys(model, path[:-1]))}"
    message = error["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    message = message[0].lower() + message[1:]
    for kind, instead in KINDS.items():
        message = message.replace(kind, instead)
    came = error.get("input")
    shown = "" if isinstance(came, Mapping) or ", got " in message else f", got {came!r}"
    return f"{where}: {name}: {message}{shown}"


def _nearest_key(path: Sequence[str], beside: Sequence[str]) -> str:
    """Return a hint: a slip of the pen in this table, a key of that name in another one, or else what is close."""
    name = path[-1]
    if closest(name, beside, cutoff=0.8):
        return nearest(name, beside)
    methods = [f"{table}.{key}" for table, model in settings_tables().items() for key in _dotted(model)]
    for keys in ([k for k in methods if k.startswith(f"{path[0]}.")], list(_dotted(Config)), methods):
        if same := [key for key in keys if key.rpartition(".")[2] == name]:
            return f"did you mean {' or '.join(map(repr, same[:MOST_HINTS]))}?"
    if not closest(name, beside):
        for keys in (list(_dotted(Config)), methods):
            last = {key.rpartition(".")[2]: key for key in keys}
            if close := closest(name, last):
                return f"did you mean {last[close]!r}?"
    return nearest(name, beside)


def _dotted(model: type[Settings]) -> Iterator[str]:
    """Yield the keys of a settings model and of the tables inside it, without the tables themselves."""
    for name, field in model.model_fields.items():
        inner, key = field.annotation, field.alias or name
        if isinstance(inner, type) and issubclass(inner, Settings):
            yield from (f"{key}.{below}" for below in _dotted(inner))
        elif key != "parts":
            yield key


def _known_keys(model: Any, path: Sequence[str]) -> list[str]:
    """Return the keys that a table of some settings may have."""
    for name in path:
        field = model.model_fields.get(name)
        model = None if field is None else field.annotation
        if not (isinstance(model, type) and issubclass(model, Settings)):
            return []
    keys = [field.alias or name for name, field in model.model_fields.items() if name != "parts"]
    return [*keys, *settings_tables()] if model is Config else keys
