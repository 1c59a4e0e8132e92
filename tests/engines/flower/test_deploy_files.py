"""The files in deploy/ name commands, options and packages that exist."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer

from fedfeat.cli import app

ROOT = Path(__file__).resolve().parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def parsed(arguments: list[str]) -> dict[str, object]:
    """Parse a command line of ours without running it."""
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    context = click.Context(command)
    _, found, rest = command.resolve_command(context, arguments)
    assert found is not None
    return found.make_context(arguments[0], rest, parent=context).params


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_run_commands_that_exist_and_restart_them(path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/fedfeat/bin/fedfeat"
    values = parsed(arguments)
    assert str(values["keys"]).startswith("/etc/fedfeat/")
    # A finished server should stay finished; a client waits for the next run.
    assert service["Restart"] == {"server": "on-failure", "client": "always"}[arguments[0]]
    assert "RestartPreventExitStatus" not in service, (
        "too few clients, or a server that is away, is a reason to try again"
    )
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_there_is_a_unit_for_each_side() -> None:
    assert [path.name for path in UNITS] == ["fedfeat-client.service", "fedfeat-server.service"]


def test_the_container_installs_extras_that_exist_from_files_that_exist() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    extras = re.search(r"/source\[([\w,]+)\]", text)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(extras[1].split(",")) <= set(project["project"]["optional-dependencies"])
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"COPY {package.split('/')[0]} /source/{package.split('/')[0]}\n" in text, "the wheel needs it"
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
    assert 'ENTRYPOINT ["fedfeat"]' in text


def test_commands_in_the_guide_that_need_other_machines_parse() -> None:
    text = (ROOT / "docs" / "flower.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^\s*(?:podman run .* )?fedfeat (server|client) (.+)$", text, re.MULTILINE)
    assert len(commands) >= 4
    for name, arguments in commands:
        assert parsed([name, *shlex.split(arguments)])["keys"]
