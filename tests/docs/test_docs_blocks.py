"""What the documents show works: Python runs, TOML is a valid experiment, commands and targets exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
import typer
from documents import ROOT, Block, blocks, commands, words
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.compare import comparison_runs
from fedfeat.config import load_config, make_config

COMMANDS = [c for c in commands() if words(c)[0] == "fedfeat"]
CHEAP = [
    c
    for c in COMMANDS
    if words(c)[1] in ("list", "doctor") or (words(c)[1:3] == ["scenario", "show"] and "--png" not in words(c))
]


def parse(arguments: list[str]) -> click.Context:
    """Parse a command line without running it and return the innermost context."""
    command: click.Command = typer.main.get_command(app)
    context, rest = click.Context(command), list(arguments)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.parse_args(context, rest)
    return context


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_blocks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Empty lines in front make a traceback name the line of the document.
    code = compile("\n" * (block.line - 1) + block.text, str(block.path), "exec")
    exec(code, {"__name__": "document"})


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_blocks_are_valid_experiments(block: Block) -> None:
    make_config(tomllib.loads(block.text))


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_parse(command: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    values = parse(words(command)[1:]).params
    overrides = values.get("set") or values.get("overrides") or ()
    if "config" in values:
        config = load_config(Path(values["config"]), overrides, [Path(p) for p in values.get("plugin") or ()])
        if "methods" in values:
            assert comparison_runs(config, values["methods"], values["seeds"], Path(values["out"]))


@pytest.mark.parametrize("command", CHEAP, ids=str)
def test_cheap_commands_run(command: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, words(command)[1:])
    assert result.exit_code == 0, result.output
    assert result.output.strip()


@pytest.mark.parametrize("arguments", [["run"], ["run", "x.toml", "--sett", "a=1"], ["list", "colours"], ["fly"]])
def test_the_parser_of_these_tests_refuses_mistakes(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(arguments)


def test_every_command_is_shown() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert known == {words(c)[1] for c in COMMANDS}


def test_other_commands_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands():
        match words(command):
            case ["fedfeat", *_]:
                pass
            case ["make", target]:
                assert target in targets, f"{command}: make has no target {target}"
            case ["pip", "install", "-e", what]:
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert set(re.findall(r"\w+", what)) <= set(extras)
            case other:
                pytest.fail(f"{command}: nobody checks the command {other[0]!r}; add it to this test")


def test_make_targets_in_tables_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()))
    assert named
    assert named <= targets
