"""Commands are imported when they are called: help is quick, and says what the commands say of themselves."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedfeat.cli import COMMANDS, app, load_command

PROGRAM = """
import sys
from fedfeat.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*{name.partition(".")[0] for name in sys.modules})
"""


def imported_by(*arguments: str) -> set[str]:
    """Return the packages that a command has imported by its end."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_need_neither_torch_nor_numpy(arguments: list[str]) -> None:
    assert not {"torch", "numpy", "pydantic", "fedfeat_reproduction"} & imported_by(*arguments)


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [["data", "list"], ["list", "presets"]])
def test_lists_need_no_torch(arguments: list[str]) -> None:
    assert "torch" not in imported_by(*arguments)


@pytest.mark.parametrize("subject", ["methods", "datasets", "presets", "recipes"])
def test_lists_hold_words_and_numbers(subject: str) -> None:
    rows = json.loads(CliRunner().invoke(app, ["list", subject, "--json"]).output)
    assert all(value is None or isinstance(value, str | int) for row in rows for value in row.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_help_is_the_commands_own(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name][1]


def test_brackets_stay_in_the_help() -> None:
    assert "[sweep]" in CliRunner().invoke(app, ["sweep", "--help"]).output
