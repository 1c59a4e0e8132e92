"""``fedfeat new method`` and ``fedfeat check``: a method of your own, from a first file to the contract."""

from __future__ import annotations

import ast
import keyword
import re
import tempfile
import time
import warnings
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfeat.config.config import Config
from fedfeat.config.plugins import forget, load_installed, load_plugins
from fedfeat.config.presets import METHOD
from fedfeat.core.errors import ConfigError, FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat.methods import PARTS, canonical, parts_of, settings_tables
from fedfeat.runs.contract.hold import chosen, hold
from fedfeat.runs.contract.promise import Outcome
from fedfeat.runs.contract.source import Source
from fedfeat.runs.contract.trial import Trial

TEMPLATES = Path(__file__).parent / "templates"
SAID = {"kept": ("passes", "green"), "broken": ("FAILS", "bold red"), "not checked": ("-", "dim")}
console = Console(highlight=False, soft_wrap=True, markup=False)
new = typer.Typer(no_args_is_help=True)


class Kind(StrEnum):
    """What a method can be."""

    addon = "addon"
    base = "base"


@new.command()
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name on the command line")],
    kind: Annotated[Kind, typer.Option(help="an add-on to other methods, or a base that stands alone")] = Kind.addon,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="file to write; default NAME.py")] = None,
) -> None:
    """Write a file with a method of your own: a loss, its settings and what it sends, ready to run."""
    path = out or Path(f"{name}.py")
    template = (TEMPLATES / f"{kind}.py").read_text()
    _refuse_name(name, template)
    if path.exists():
        raise FedfeatError(f"{path}: a file of that name is there already; choose another --out")
    camel = "".join(word.capitalize() for word in name.split("_"))
    write_atomically(path, template.replace("my_method", name).replace("MyMethod", camel).encode())
    composed = name if kind is Kind.base else f"{parts_of(METHOD)[0].name}+{name}"
    console.print(f"{path}: written; it runs as it stands")
    console.print(f"run it:    fedfeat run digits --plugin {path} --set method={composed}")
    console.print(f"check it:  fedfeat check {path}")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python file with methods of your own")],
    method: Annotated[
        str | None, typer.Option(metavar="METHOD", help="composition to check; default: enough to try all of the file")
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting of the method")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="comma-separated promises to check, with what they need")
    ] = None,
) -> None:
    """Hold a method of your own to the contract, and say what fails and where."""
    names = [name.strip() for name in only.split(",")] if only else []
    chosen(names)  # a wrong name is told before anything runs
    load_installed(reserved=Config.model_fields)
    forget()
    load_plugins([str(file.absolute())], Path(), reserved=Config.model_fields)
    failed = False
    for composition in _compositions(file) if method is None else [canonical(method)]:
        parts_of(composition)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = Trial(composition, Path(folder), [file], set or (), files=[file])
            trial.config()  # mistakes in the command itself
            failed |= not _show(trial, names)
    if failed:
        raise typer.Exit(1)


def _show(trial: Trial, names: list[str]) -> bool:
    """Print what comes of every promise as it comes, and return whether all were kept that could be checked."""
    started, verdicts = time.monotonic(), Counter[str]()
    console.print(f"{trial.method} on a toy problem: six classes in three tasks, three clients")
    with console.status("checking"):
        for outcome in hold(trial, names):
            verdicts[outcome.verdict] += 1
            _print(outcome)
    console.print(
        f"{verdicts['kept']} passed, {verdicts['broken']} failed, {verdicts['not checked']} not checked, "
        f"{time.monotonic() - started:.0f} s"
    )
    return not verdicts["broken"]


def _print(outcome: Outcome) -> None:
    word, style = SAID[outcome.verdict]
    console.print(f"{word:7} {outcome.promise.name:13} {outcome.promise.words}", style=style)
    broken = outcome.broken
    lines = [outcome.reason] if broken is None else [broken.told, broken.do]
    for line in filter(None, lines):
        console.print(f"{'':21} {line}")


def _refuse_name(name: str, template: str) -> None:
    """Refuse a name that cannot be a method's, or that something has already."""
    load_installed(reserved=Config.model_fields)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot be the name of a method; take lower-case letters, digits and '_'")
    if name in PARTS or canonical(name) != name or name in {*settings_tables(), *Config.model_fields}:
        raise ConfigError(f"{name!r} is the name of a method or of a table of settings already; choose another")
    used = {getattr(node, field, None) for node in ast.walk(ast.parse(template)) for field in ("id", "arg", "name")}
    if name in used - {"my_method"}:
        raise ConfigError(f"{name!r} means something else inside the file; choose another")


def _compositions(file: Path) -> list[str]:
    """Return compositions that try every part of a file: the examples it names, and what they leave out."""
    source = Source((file.absolute(),))
    parts = {name: part for name, part in PARTS.items() if source.of_function(part.build)}
    chosen = list(dict.fromkeys(example for part in parts.values() for example in part.examples))
    covered = {part.name for composition in chosen for part in parts_of(composition)}
    start = parts_of(METHOD)[0].name
    rest = [p for p in parts.values() if p.name not in covered]
    return [*(p.name if p.kind == "base" else f"{start}+{p.name}" for p in rest), *chosen]
